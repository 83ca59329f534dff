"""How many branch ENIs the trunk ENI of an instance type can carry. No API of EC2 reports this number.

Source: amazon-vpc-resource-controller-k8s pkg/aws/vpc/limits.go (BranchInterface, IsTrunkingCompatible), as generated 2026-03-20.
"""

from __future__ import annotations

BRANCHES = """\
a1 i7i = 10:medium 9:large 18:xlarge 38:2xlarge 54:4xlarge,metal 84:8xlarge,12xlarge
  107:16xlarge,24xlarge,48xlarge,metal-24xl,metal-48xl
c1 c3 c4 d2 f1 h1 i2 m1 m2 m3 m4 p3 r3 r4 t1 t2 t3 t3a t4g u-6tb1 x1 x1e =
  0:nano,micro,small,medium,large,xlarge,2xlarge,4xlarge,8xlarge,10xlarge,16xlarge,32xlarge,56xlarge,112xlarge
c5 c5a c5ad c5d c6g c6gd c6gn c7g c7gd c7gn c8g c8gd g5g i4g i8g im4gn is4gen m5a m5ad m5d m5dn m5n m6g m6gd m7g m7gd
  m8g m8gd r5a r5ad r5b r5d r5dn r5n r6g r6gd r7g r7gd r8g r8gd trn1n vt1 x8g = 4:medium 9:large 18:xlarge
  38:2xlarge,3xlarge 54:4xlarge,6xlarge,8xlarge,9xlarge,12xlarge
  107:16xlarge,18xlarge,24xlarge,48xlarge,metal,metal-24xl,metal-48xl 120:32xlarge
c5n c8a c8i c8id gr6f m8a m8i m8id r8a r8i r8id u-3tb1 u7i-12tb u7i-6tb u7i-8tb x8i = 4:medium 9:large 18:xlarge
  38:2xlarge 54:4xlarge,9xlarge 82:8xlarge 110:12xlarge 106:16xlarge,24xlarge,metal-24xl
  107:18xlarge,112xlarge,224xlarge,metal 98:32xlarge,48xlarge,64xlarge,96xlarge,metal-48xl,metal-96xl 6:56xlarge
c6a c6i c6id c7a c7i dl2q f2 g6 gr6 inf2 m6a m6i m6id m7a m7i p3dn r6a r6i r6id r7a r7i r7iz u7in-16tb u7in-24tb
  u7in-32tb x2idn = 4:medium 9:large 18:xlarge 38:2xlarge 54:4xlarge 84:6xlarge,8xlarge 114:12xlarge
  107:16xlarge,24xlarge,32xlarge,48xlarge,metal,metal-16xl,metal-24xl,metal-32xl,metal-48xl 106:224xlarge
c6in m6idn m6in p5e p5en p6-b200 p6-b300 r6idn r6in = 9:large 18:xlarge 38:2xlarge 54:4xlarge 84:8xlarge 114:12xlarge
  107:16xlarge,24xlarge 106:32xlarge,metal 120:48xlarge
c7i-flex m7i-flex = 3:large 8:xlarge 18:2xlarge 34:4xlarge 54:8xlarge 114:12xlarge 107:16xlarge
c8gb c8gn m8gb m8gn r8gb r8gn = 4:medium 9:large 18:xlarge 38:2xlarge 54:4xlarge 52:8xlarge 50:12xlarge 106:16xlarge
  98:24xlarge,48xlarge
c8i-flex m8i-flex r8i-flex = 3:large 8:xlarge 18:2xlarge 34:4xlarge 52:8xlarge 110:12xlarge 106:16xlarge
d3 = 42:xlarge 92:2xlarge 118:4xlarge 119:8xlarge
d3en = 24:xlarge 58:2xlarge 118:4xlarge,6xlarge,8xlarge 119:12xlarge
dl1 p4d p4de x2gd = 10:medium 9:large 18:xlarge 38:2xlarge 54:4xlarge,8xlarge,12xlarge 107:16xlarge,metal 62:24xlarge
g4ad = 12:xlarge,2xlarge 11:4xlarge 10:8xlarge 6:16xlarge
g4dn = 39:xlarge,2xlarge 59:4xlarge 58:8xlarge 54:12xlarge 118:16xlarge 107:metal
g5 = 4:xlarge 17:2xlarge 34:4xlarge 84:8xlarge 107:12xlarge,24xlarge 114:16xlarge 115:48xlarge
g6e g6f = 10:large 18:xlarge 38:2xlarge 54:4xlarge 84:8xlarge 112:12xlarge 107:16xlarge 102:24xlarge 82:48xlarge
g7e = 120:2xlarge,4xlarge,8xlarge,12xlarge,24xlarge,48xlarge
i3 = 0:large,xlarge,2xlarge,4xlarge,8xlarge,16xlarge 120:metal
i3en = 5:large 12:xlarge 28:2xlarge 38:3xlarge 54:6xlarge,12xlarge 107:24xlarge,metal
i4i = 0:large 6:xlarge 26:2xlarge 52:4xlarge 112:8xlarge,12xlarge 120:16xlarge,32xlarge,metal 105:24xlarge
i7ie mac-m4 mac-m4max mac-m4pro mac1 mac2 mac2-m1ultra mac2-m2 mac2-m2pro = 19:large 27:xlarge,2xlarge,3xlarge
  54:6xlarge,12xlarge 107:18xlarge,24xlarge,48xlarge,metal-24xl,metal-48xl 6:metal
i8ge = 19:large 27:xlarge,2xlarge 25:3xlarge 52:6xlarge 50:12xlarge 106:18xlarge,24xlarge,metal-24xl
  98:48xlarge,metal-48xl
inf1 = 38:xlarge,2xlarge 54:6xlarge 111:24xlarge
m5 r5 = 9:large 18:xlarge 38:2xlarge 54:4xlarge,8xlarge,12xlarge 107:16xlarge,24xlarge 120:metal
m5zn x2iezn = 13:large 29:xlarge 62:2xlarge 92:3xlarge 114:4xlarge,6xlarge,8xlarge 107:12xlarge,metal
m8azn p5 trn1 x8aedz = 3:medium 8:large 18:xlarge 17:2xlarge 34:3xlarge 58:4xlarge 54:6xlarge
  106:12xlarge,24xlarge,metal-12xl,metal-24xl 82:32xlarge 120:48xlarge
x2iedn = 11:xlarge 27:2xlarge 54:4xlarge 114:8xlarge 107:16xlarge,24xlarge,32xlarge,metal
z1d = 13:large 28:xlarge 58:2xlarge 54:3xlarge,6xlarge 107:12xlarge,metal
"""
"""Each paragraph has instance families, "=", and `number:size,size` parts: the number of branch ENIs that the trunk of these sizes can
carry. 0 means that the type can have no trunk ENI. Not every family of a paragraph has every size that the paragraph lists."""


def trunk_capacity(instance_type: str) -> int | None:
    """Return the branch ENIs that a type's trunk can carry, 0 if it can have none; None if it is not in the table."""
    family, _, size = instance_type.partition(".")
    for paragraph in BRANCHES.replace("\n  ", " ").splitlines():
        families, _, counts = paragraph.partition("=")
        if family in families.split():
            return _count_of_size(size, counts)
    return None


def _count_of_size(size: str, counts: str) -> int | None:
    """Find the number of a size in a paragraph's `number:size,size` parts; None if the paragraph does not list the size."""
    for part in counts.split():
        count, _, sizes = part.partition(":")
        if size in sizes.split(","):
            return int(count)
    return None
