"""Names of availability zones, one of each form: of every partition, local zones and Wavelength zones, and some that AWS may add.

Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-regions-availability-zones.html.
"""

from __future__ import annotations

REAL_ZONE_NAMES = (
    "us-west-2a",
    "ap-southeast-5a",
    "me-central-1a",
    "cn-northwest-1b",
    "us-gov-west-1a",
    "us-iso-east-1a",
    "us-isob-east-1a",
    "eu-isoe-west-1a",
    "us-isof-south-1a",
    "eusc-de-east-1a",
    "us-west-2-lax-1b",
    "us-east-1-dfw-2a",
    "us-east-1-wl1-bos-wlz-1",
    "us-east-1-wl2-foe-wlz-1",
    "ap-northeast-1-wl1-nrt-wlz-1",
)

ZONE_NAMES = (*REAL_ZONE_NAMES, "eusc-de-east-12c", "mars-1", "use1-az1", "z")
