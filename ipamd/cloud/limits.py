"""ENIs and addresses of an instance type: EC2's answer, then the built-in table, then a safe default.

An unknown type is not an error: new types appear weekly, and a node must start on them. The ENI count is that of the
default network card (p5.48xlarge: 2, not 64), because the node's own pool uses only that card. amazon-vpc-cni-k8s counts the same way
(misc/eni-max-pods.txt, its note on multi-card types). Only EC2's answer has the counts of the other cards (`further_card_enis`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipamd.cloud.legs.trunk_capacity import trunk_capacity
from ipamd.model.eni import InstanceLimits

# Limits of instance types at the time of this release, used if DescribeInstanceTypes fails or does not have the type.
#
# A row has: ENIs on the default network card, IPv4 addresses per ENI (with the primary one), network cards, kind (nitro, xen, metal),
# then types as `family:size,size`. The table is a text instead of a dict of 1,400 entries, because a process searches it rarely.
# Source: DescribeInstanceTypes as recorded in moto 5.2.5. `python -m tests.unit.cloud.limits_source` generates the table, and a test
# compares it with moto's record.

TABLE = """\
1 50 2 nitro hpc6id:32xlarge
2 2 1 nitro t3:micro,nano t3a:micro,nano t4g:micro,nano t8i:micro,nano
2 2 1 xen t1:micro t2:micro,nano
2 4 1 nitro a1:medium c6g:medium c6gd:medium c6gn:medium c7a:medium c7g:medium c7gd:medium c7gn:medium c8a:medium
2 4 1 nitro c8g:medium c8gb:medium c8gd:medium c8gn:medium is4gen:medium m6g:medium m6gd:medium m7a:medium m7g:medium
2 4 1 nitro m7gd:medium m8a:medium m8g:medium m8gb:medium m8gd:medium m8gn:medium r6g:medium r6gd:medium r7a:medium
2 4 1 nitro r7g:medium r7gd:medium r8a:medium r8g:medium r8gb:medium r8gd:medium r8gn:medium t3a:small x2gd:medium
2 4 1 nitro x8g:medium
2 4 1 xen m1:small
2 6 1 xen c1:medium m1:medium m3:medium
2 10 1 nitro g6f:large
2 10 1 xen m4:large
2 15 1 nitro trn2:3xlarge
2 20 1 nitro c9g:medium c9gd:medium m9g:medium m9gd:medium r9g:medium r9gd:medium
2 50 1 nitro hpc6a:48xlarge
2 50 2 nitro hpc7a:12xlarge,24xlarge,48xlarge,96xlarge hpc8a:96xlarge
2 50 16 nitro trn2:48xlarge trn2u:48xlarge
2 50 32 nitro p5:48xlarge p5e:48xlarge
3 4 1 nitro m8azn:medium t3:small t4g:small t8i:small
3 4 1 xen t2:small
3 6 1 nitro t3:medium t3a:medium t4g:medium t8i:medium
3 6 1 xen t2:medium
3 10 1 nitro a1:large c5:large c5a:large c5ad:large c5d:large c5n:large c6a:large c6g:large c6gd:large c6gn:large
3 10 1 nitro c6i:large c6id:large c6in:large c7a:large c7g:large c7gd:large c7gn:large c7i:large c7i-flex:large
3 10 1 nitro c8g:large c8gb:large c8gd:large c8gn:large g4dn:2xlarge,4xlarge,xlarge i3en:large i4g:large i4i:large
3 10 1 nitro i7i:large i7ie:large i8g:large i8ge:large im4gn:large is4gen:large m5:large m5a:large m5ad:large m5d:large
3 10 1 nitro m5dn:large m5n:large m5zn:large m6a:large m6g:large m6gd:large m6i:large m6id:large m6idn:large m6in:large
3 10 1 nitro m7a:large m7g:large m7gd:large m7i:large m7i-flex:large m8g:large m8gb:large m8gd:large m8gn:large r5:large
3 10 1 nitro r5a:large r5ad:large r5b:large r5d:large r5dn:large r5n:large r6a:large r6g:large r6gd:large r6i:large
3 10 1 nitro r6id:large r6idn:large r6in:large r7a:large r7g:large r7gd:large r7i:large r7iz:large r8g:large r8gb:large
3 10 1 nitro r8gd:large r8gn:large x2gd:large x8g:large z1d:large
3 10 1 xen c3:large c4:large i3:large m1:large m3:large r3:large r4:large x1e:xlarge
3 12 1 nitro t3:large t3a:large t4g:large
3 12 1 xen t2:large
3 15 1 xen t2:2xlarge,xlarge
3 20 1 nitro c8a:large c8i:large c8i-flex:large c8id:large c9g:large c9gd:large d3:8xlarge m8a:large m8i:large
3 20 1 nitro m8i-flex:large m8id:large m9g:large m9gd:large r8a:large r8i:large r8i-flex:large r8id:large r9g:large
3 20 1 nitro r9gd:large x8i:large
3 30 1 nitro d3en:12xlarge
4 3 1 nitro d3:xlarge d3en:xlarge
4 5 1 nitro d3:2xlarge d3en:2xlarge
4 10 1 nitro d3:4xlarge d3en:4xlarge inf1:2xlarge,xlarge
4 15 1 nitro a1:2xlarge,xlarge c5:2xlarge,xlarge c5a:2xlarge,xlarge c5ad:2xlarge,xlarge c5d:2xlarge,xlarge
4 15 1 nitro c5n:2xlarge,xlarge c6a:2xlarge,xlarge c6g:2xlarge,xlarge c6gd:2xlarge,xlarge c6gn:2xlarge,xlarge
4 15 1 nitro c6i:2xlarge,xlarge c6id:2xlarge,xlarge c6in:2xlarge,xlarge c7a:2xlarge,xlarge c7g:2xlarge,xlarge
4 15 1 nitro c7gd:2xlarge,xlarge c7gn:2xlarge,xlarge c7i:2xlarge,xlarge c7i-flex:2xlarge,xlarge c8g:2xlarge,xlarge
4 15 1 nitro c8gb:2xlarge,xlarge c8gd:2xlarge,xlarge c8gn:2xlarge,xlarge d3en:6xlarge g4dn:16xlarge,8xlarge
4 15 1 nitro g5:2xlarge,xlarge g5g:2xlarge,xlarge g6:2xlarge,xlarge g6e:2xlarge,xlarge g6f:2xlarge,xlarge
4 15 1 nitro i3en:2xlarge,3xlarge,xlarge i4g:2xlarge,xlarge i4i:2xlarge,xlarge i7i:2xlarge,xlarge
4 15 1 nitro i7ie:2xlarge,3xlarge,xlarge i8g:2xlarge,xlarge i8ge:2xlarge,xlarge im4gn:2xlarge,xlarge inf2:xlarge
4 15 1 nitro is4gen:2xlarge,xlarge m5:2xlarge,xlarge m5a:2xlarge,xlarge m5ad:2xlarge,xlarge m5d:2xlarge,xlarge
4 15 1 nitro m5dn:2xlarge,xlarge m5n:2xlarge,xlarge m5zn:2xlarge,xlarge m6a:2xlarge,xlarge m6g:2xlarge,xlarge
4 15 1 nitro m6gd:2xlarge,xlarge m6i:2xlarge,xlarge m6id:2xlarge,xlarge m6idn:2xlarge,xlarge m6in:2xlarge,xlarge
4 15 1 nitro m7a:2xlarge,xlarge m7g:2xlarge,xlarge m7gd:2xlarge,xlarge m7i:2xlarge,xlarge m7i-flex:2xlarge,xlarge
4 15 1 nitro m8g:2xlarge,xlarge m8gb:2xlarge,xlarge m8gd:2xlarge,xlarge m8gn:2xlarge,xlarge r5:2xlarge,xlarge
4 15 1 nitro r5a:2xlarge,xlarge r5ad:2xlarge,xlarge r5b:2xlarge,xlarge r5d:2xlarge,xlarge r5dn:2xlarge,xlarge
4 15 1 nitro r5n:2xlarge,xlarge r6a:2xlarge,xlarge r6g:2xlarge,xlarge r6gd:2xlarge,xlarge r6i:2xlarge,xlarge
4 15 1 nitro r6id:2xlarge,xlarge r6idn:2xlarge,xlarge r6in:2xlarge,xlarge r7a:2xlarge,xlarge r7g:2xlarge,xlarge
4 15 1 nitro r7gd:2xlarge,xlarge r7i:2xlarge,xlarge r7iz:2xlarge,xlarge r8g:2xlarge,xlarge r8gb:2xlarge,xlarge
4 15 1 nitro r8gd:2xlarge,xlarge r8gn:2xlarge,xlarge t3:2xlarge,xlarge t3a:2xlarge,xlarge t4g:2xlarge,xlarge
4 15 1 nitro trn1:2xlarge vt1:3xlarge x2gd:2xlarge,xlarge x2iedn:2xlarge,xlarge x2iezn:2xlarge x8g:2xlarge,xlarge
4 15 1 nitro z1d:2xlarge,xlarge
4 15 1 xen c1:xlarge c3:2xlarge,xlarge c4:2xlarge,xlarge d2:2xlarge,xlarge h1:2xlarge i2:2xlarge,xlarge
4 15 1 xen i3:2xlarge,xlarge m1:xlarge m2:xlarge m3:xlarge m4:2xlarge,xlarge r3:2xlarge,xlarge r4:2xlarge,xlarge
4 15 1 xen x1e:2xlarge,4xlarge,8xlarge
4 20 1 nitro c8a:xlarge c8ib:large c8in:large c8ine:large d3en:8xlarge m8a:xlarge m8azn:large,xlarge m8ib:large
4 20 1 nitro m8idb:large m8idn:large m8in:large m8ine:large r8a:xlarge r8ib:large r8idb:large r8idn:large r8in:large
4 20 1 nitro x8aedz:large,xlarge
4 30 1 nitro c8i:2xlarge,xlarge c8i-flex:2xlarge,xlarge c8ib:2xlarge,xlarge c8id:2xlarge,xlarge c8in:2xlarge,xlarge
4 30 1 nitro c8ine:2xlarge,xlarge c9g:2xlarge,xlarge c9gd:2xlarge,xlarge m8i:2xlarge,xlarge m8i-flex:2xlarge,xlarge
4 30 1 nitro m8ib:2xlarge,xlarge m8id:2xlarge,xlarge m8idb:2xlarge,xlarge m8idn:2xlarge,xlarge m8in:2xlarge,xlarge
4 30 1 nitro m8ine:2xlarge,xlarge m9g:2xlarge,xlarge m9gd:2xlarge,xlarge p5:4xlarge r8i:2xlarge,xlarge
4 30 1 nitro r8i-flex:2xlarge,xlarge r8ib:2xlarge,xlarge r8id:2xlarge,xlarge r8idb:2xlarge,xlarge r8idn:2xlarge,xlarge
4 30 1 nitro r8in:2xlarge,xlarge r9g:2xlarge,xlarge r9gd:2xlarge,xlarge x8i:2xlarge,xlarge
4 30 1 xen m2:2xlarge m3:2xlarge
4 40 1 nitro c8a:2xlarge m8a:2xlarge r8a:2xlarge
4 50 1 nitro hpc7g:16xlarge,4xlarge,8xlarge
4 50 8 nitro p6-b200:48xlarge
4 50 16 nitro p5en:48xlarge
4 50 17 nitro p6-b300:48xlarge
4 64 1 nitro g7:2xlarge g7e:2xlarge
5 50 8 nitro trn1:32xlarge
5 50 16 nitro trn1n:32xlarge
6 30 1 nitro i8ge:3xlarge
7 50 1 nitro g5:48xlarge
8 30 1 metal a1:metal mac-m3ultra:metal mac-m4:metal mac-m4max:metal mac-m4pro:metal mac1:metal mac2:metal
8 30 1 metal mac2-m1ultra:metal mac2-m2:metal mac2-m2pro:metal
8 30 1 nitro a1:4xlarge c5:12xlarge,4xlarge,9xlarge c5a:12xlarge,4xlarge,8xlarge c5ad:12xlarge,4xlarge,8xlarge
8 30 1 nitro c5d:12xlarge,4xlarge,9xlarge c5n:4xlarge,9xlarge c6a:12xlarge,4xlarge,8xlarge c6g:12xlarge,4xlarge,8xlarge
8 30 1 nitro c6gd:12xlarge,4xlarge,8xlarge c6gn:12xlarge,4xlarge,8xlarge c6i:12xlarge,4xlarge,8xlarge
8 30 1 nitro c6id:12xlarge,4xlarge,8xlarge c6in:12xlarge,4xlarge,8xlarge c7a:12xlarge,4xlarge,8xlarge
8 30 1 nitro c7g:12xlarge,4xlarge,8xlarge c7gd:12xlarge,4xlarge,8xlarge c7gn:12xlarge,4xlarge,8xlarge
8 30 1 nitro c7i:12xlarge,4xlarge,8xlarge c7i-flex:12xlarge,4xlarge,8xlarge c8g:12xlarge,4xlarge,8xlarge c8gb:4xlarge
8 30 1 nitro c8gd:12xlarge,4xlarge,8xlarge c8gn:4xlarge f2:12xlarge,6xlarge g4dn:12xlarge g5:16xlarge,4xlarge,8xlarge
8 30 1 nitro g5g:4xlarge,8xlarge g6:12xlarge,4xlarge,8xlarge g6e:4xlarge,8xlarge g6f:4xlarge gr6:4xlarge,8xlarge
8 30 1 nitro gr6f:4xlarge i3en:12xlarge,6xlarge i4g:4xlarge,8xlarge i4i:12xlarge,4xlarge,8xlarge
8 30 1 nitro i7i:12xlarge,4xlarge,8xlarge i7ie:6xlarge i8g:12xlarge,4xlarge,8xlarge im4gn:4xlarge,8xlarge inf1:6xlarge
8 30 1 nitro inf2:8xlarge is4gen:4xlarge,8xlarge m5:12xlarge,4xlarge,8xlarge m5a:12xlarge,4xlarge,8xlarge
8 30 1 nitro m5ad:12xlarge,4xlarge,8xlarge m5d:12xlarge,4xlarge,8xlarge m5dn:12xlarge,4xlarge,8xlarge
8 30 1 nitro m5n:12xlarge,4xlarge,8xlarge m5zn:3xlarge,6xlarge m6a:12xlarge,4xlarge,8xlarge m6g:12xlarge,4xlarge,8xlarge
8 30 1 nitro m6gd:12xlarge,4xlarge,8xlarge m6i:12xlarge,4xlarge,8xlarge m6id:12xlarge,4xlarge,8xlarge
8 30 1 nitro m6idn:12xlarge,4xlarge,8xlarge m6in:12xlarge,4xlarge,8xlarge m7a:12xlarge,4xlarge,8xlarge
8 30 1 nitro m7g:12xlarge,4xlarge,8xlarge m7gd:12xlarge,4xlarge,8xlarge m7i:12xlarge,4xlarge,8xlarge
8 30 1 nitro m7i-flex:12xlarge,4xlarge,8xlarge m8g:12xlarge,4xlarge,8xlarge m8gb:4xlarge m8gd:12xlarge,4xlarge,8xlarge
8 30 1 nitro m8gn:4xlarge r5:12xlarge,4xlarge,8xlarge r5a:12xlarge,4xlarge,8xlarge r5ad:12xlarge,4xlarge,8xlarge
8 30 1 nitro r5b:12xlarge,4xlarge,8xlarge r5d:12xlarge,4xlarge,8xlarge r5dn:12xlarge,4xlarge,8xlarge
8 30 1 nitro r5n:12xlarge,4xlarge,8xlarge r6a:12xlarge,4xlarge,8xlarge r6g:12xlarge,4xlarge,8xlarge
8 30 1 nitro r6gd:12xlarge,4xlarge,8xlarge r6i:12xlarge,4xlarge,8xlarge r6id:12xlarge,4xlarge,8xlarge
8 30 1 nitro r6idn:12xlarge,4xlarge,8xlarge r6in:12xlarge,4xlarge,8xlarge r7a:12xlarge,4xlarge,8xlarge
8 30 1 nitro r7g:12xlarge,4xlarge,8xlarge r7gd:12xlarge,4xlarge,8xlarge r7i:12xlarge,4xlarge,8xlarge
8 30 1 nitro r7iz:12xlarge,4xlarge,8xlarge r8g:12xlarge,4xlarge,8xlarge r8gb:4xlarge r8gd:12xlarge,4xlarge,8xlarge
8 30 1 nitro r8gn:4xlarge u-3tb1:56xlarge vt1:6xlarge x2gd:12xlarge,4xlarge,8xlarge x2iedn:4xlarge,8xlarge
8 30 1 nitro x2iezn:4xlarge,6xlarge,8xlarge x8g:12xlarge,4xlarge,8xlarge z1d:3xlarge,6xlarge
8 30 1 xen c3:4xlarge,8xlarge c4:4xlarge,8xlarge d2:4xlarge,8xlarge h1:4xlarge,8xlarge i2:4xlarge,8xlarge
8 30 1 xen i3:4xlarge,8xlarge m2:4xlarge m4:10xlarge,16xlarge,4xlarge r3:4xlarge,8xlarge r4:4xlarge,8xlarge
8 30 1 xen x1:16xlarge,32xlarge x1e:16xlarge,32xlarge
8 40 1 nitro c8a:4xlarge m8a:4xlarge m8azn:3xlarge,6xlarge r8a:4xlarge x8aedz:3xlarge,6xlarge
8 50 1 nitro c8i:4xlarge c8i-flex:4xlarge c8ib:4xlarge,8xlarge c8id:4xlarge c8in:4xlarge,8xlarge c8ine:4xlarge,8xlarge
8 50 1 nitro c9g:4xlarge c9gd:4xlarge i7ie:12xlarge m8i:4xlarge m8i-flex:4xlarge m8ib:4xlarge,8xlarge m8id:4xlarge
8 50 1 nitro m8idb:4xlarge,8xlarge m8idn:4xlarge,8xlarge m8in:4xlarge,8xlarge m8ine:4xlarge,8xlarge m9g:4xlarge
8 50 1 nitro m9gd:4xlarge r8i:4xlarge r8i-flex:4xlarge r8ib:4xlarge,8xlarge r8id:4xlarge r8idb:4xlarge,8xlarge
8 50 1 nitro r8idn:4xlarge,8xlarge r8in:4xlarge,8xlarge r9g:4xlarge r9gd:4xlarge x8i:4xlarge
8 50 1 xen h1:16xlarge
8 50 2 metal c6in:metal i7ie:metal-48xl m6idn:metal m6in:metal r6idn:metal r6in:metal
8 50 2 nitro c6in:32xlarge i7ie:48xlarge m6idn:32xlarge m6in:32xlarge r6idn:32xlarge r6in:32xlarge u7in-16tb:224xlarge
8 50 2 nitro u7in-24tb:224xlarge u7in-32tb:224xlarge
8 64 1 nitro g7:4xlarge g7e:4xlarge,8xlarge
10 30 1 nitro c8gb:8xlarge c8gn:8xlarge g6e:12xlarge i8ge:6xlarge m8gb:8xlarge m8gn:8xlarge r8gb:8xlarge r8gn:8xlarge
10 40 1 nitro c8a:8xlarge m8a:8xlarge r8a:8xlarge
10 50 1 nitro c8i:8xlarge c8i-flex:8xlarge c8id:8xlarge c9g:8xlarge c9gd:8xlarge m8i:8xlarge m8i-flex:8xlarge
10 50 1 nitro m8id:8xlarge m9g:8xlarge m9gd:8xlarge r8i:8xlarge r8i-flex:8xlarge r8id:8xlarge r9g:8xlarge r9gd:8xlarge
10 50 1 nitro x8i:8xlarge
10 50 2 nitro g6e:24xlarge
10 50 4 nitro g6e:48xlarge
10 64 1 nitro g7:8xlarge g7e:12xlarge
10 64 2 nitro g7e:24xlarge
10 64 4 nitro g7e:48xlarge
11 30 1 nitro inf1:24xlarge
12 30 1 nitro c8gb:12xlarge c8gn:12xlarge i8ge:12xlarge m8gb:12xlarge m8gn:12xlarge r8gb:12xlarge r8gn:12xlarge
12 50 1 nitro c8i:12xlarge c8i-flex:12xlarge c8ib:12xlarge c8id:12xlarge c8in:12xlarge c8ine:12xlarge c9g:12xlarge
12 50 1 nitro c9gd:12xlarge m8i:12xlarge m8i-flex:12xlarge m8ib:12xlarge m8id:12xlarge m8idb:12xlarge m8idn:12xlarge
12 50 1 nitro m8in:12xlarge m8ine:12xlarge m9g:12xlarge m9gd:12xlarge r8i:12xlarge r8i-flex:12xlarge r8ib:12xlarge
12 50 1 nitro r8id:12xlarge r8idb:12xlarge r8idn:12xlarge r8in:12xlarge r9g:12xlarge r9gd:12xlarge x8i:12xlarge
12 50 2 metal c8gb:metal-48xl c8gn:metal-48xl i8ge:metal-48xl m8gb:metal-48xl m8gn:metal-48xl r8gb:metal-48xl
12 50 2 metal r8gn:metal-48xl
12 50 2 nitro c8gb:48xlarge c8gn:48xlarge i8ge:48xlarge m8gb:48xlarge m8gn:48xlarge r8gb:48xlarge r8gn:48xlarge
12 64 1 nitro c8a:12xlarge g7:12xlarge m8a:12xlarge r8a:12xlarge
12 64 2 metal c8ib:metal-96xl c8in:metal-96xl m8ib:metal-96xl m8idb:metal-96xl m8idn:metal-96xl m8in:metal-96xl
12 64 2 metal r8ib:metal-96xl r8idb:metal-96xl r8idn:metal-96xl r8in:metal-96xl
12 64 2 nitro c8ib:96xlarge c8in:96xlarge g7:48xlarge m8ib:96xlarge m8idb:96xlarge m8idn:96xlarge m8in:96xlarge
12 64 2 nitro r8ib:96xlarge r8idb:96xlarge r8idn:96xlarge r8in:96xlarge
15 30 1 nitro i4i:24xlarge
15 50 1 metal c5:metal c5d:metal c5n:metal c6a:metal c6g:metal c6gd:metal c6i:metal c6id:metal c7a:metal-48xl c7g:metal
15 50 1 metal c7gd:metal c7gn:metal c7i:metal-24xl,metal-48xl c8g:metal-24xl,metal-48xl c8gd:metal-24xl,metal-48xl
15 50 1 metal g4dn:metal g5g:metal i3en:metal i4i:metal i7i:metal-24xl,metal-48xl i7ie:metal-24xl
15 50 1 metal i8g:metal-24xl,metal-48xl m5:metal m5d:metal m5dn:metal m5n:metal m5zn:metal m6a:metal m6g:metal
15 50 1 metal m6gd:metal m6i:metal m6id:metal m7a:metal-48xl m7g:metal m7gd:metal m7i:metal-24xl,metal-48xl
15 50 1 metal m8g:metal-24xl,metal-48xl m8gd:metal-24xl,metal-48xl r5:metal r5b:metal r5d:metal r5dn:metal r5n:metal
15 50 1 metal r6a:metal r6g:metal r6gd:metal r6i:metal r6id:metal r7a:metal-48xl r7g:metal r7gd:metal
15 50 1 metal r7i:metal-24xl,metal-48xl r7iz:metal-16xl,metal-32xl r8g:metal-24xl,metal-48xl r8gd:metal-24xl,metal-48xl
15 50 1 metal x2gd:metal x2idn:metal x2iedn:metal x2iezn:metal x8g:metal-24xl,metal-48xl z1d:metal
15 50 1 nitro c5:18xlarge,24xlarge c5a:16xlarge,24xlarge c5ad:16xlarge,24xlarge c5d:18xlarge,24xlarge c5n:18xlarge
15 50 1 nitro c6a:16xlarge,24xlarge,32xlarge,48xlarge c6g:16xlarge c6gd:16xlarge c6gn:16xlarge
15 50 1 nitro c6i:16xlarge,24xlarge,32xlarge c6id:16xlarge,24xlarge,32xlarge c6in:16xlarge,24xlarge
15 50 1 nitro c7a:16xlarge,24xlarge,32xlarge,48xlarge c7g:16xlarge c7gd:16xlarge c7gn:16xlarge
15 50 1 nitro c7i:16xlarge,24xlarge,48xlarge c7i-flex:16xlarge c8g:16xlarge,24xlarge,48xlarge
15 50 1 nitro c8gd:16xlarge,24xlarge,48xlarge dl2q:24xlarge f2:48xlarge g5:12xlarge,24xlarge g5g:16xlarge
15 50 1 nitro g6:16xlarge,24xlarge,48xlarge g6e:16xlarge i3en:24xlarge i4g:16xlarge i4i:16xlarge,32xlarge
15 50 1 nitro i7i:16xlarge,24xlarge,48xlarge i7ie:18xlarge,24xlarge i8g:16xlarge,24xlarge,48xlarge im4gn:16xlarge
15 50 1 nitro inf2:24xlarge,48xlarge m5:16xlarge,24xlarge m5a:16xlarge,24xlarge m5ad:16xlarge,24xlarge
15 50 1 nitro m5d:16xlarge,24xlarge m5dn:16xlarge,24xlarge m5n:16xlarge,24xlarge m5zn:12xlarge
15 50 1 nitro m6a:16xlarge,24xlarge,32xlarge,48xlarge m6g:16xlarge m6gd:16xlarge m6i:16xlarge,24xlarge,32xlarge
15 50 1 nitro m6id:16xlarge,24xlarge,32xlarge m6idn:16xlarge,24xlarge m6in:16xlarge,24xlarge
15 50 1 nitro m7a:16xlarge,24xlarge,32xlarge,48xlarge m7g:16xlarge m7gd:16xlarge m7i:16xlarge,24xlarge,48xlarge
15 50 1 nitro m7i-flex:16xlarge m8g:16xlarge,24xlarge,48xlarge m8gd:16xlarge,24xlarge,48xlarge p3dn:24xlarge
15 50 1 nitro r5:16xlarge,24xlarge r5a:16xlarge,24xlarge r5ad:16xlarge,24xlarge r5b:16xlarge,24xlarge
15 50 1 nitro r5d:16xlarge,24xlarge r5dn:16xlarge,24xlarge r5n:16xlarge,24xlarge r6a:16xlarge,24xlarge,32xlarge,48xlarge
15 50 1 nitro r6g:16xlarge r6gd:16xlarge r6i:16xlarge,24xlarge,32xlarge r6id:16xlarge,24xlarge,32xlarge
15 50 1 nitro r6idn:16xlarge,24xlarge r6in:16xlarge,24xlarge r7a:16xlarge,24xlarge,32xlarge,48xlarge r7g:16xlarge
15 50 1 nitro r7gd:16xlarge r7i:16xlarge,24xlarge,48xlarge r7iz:16xlarge,32xlarge r8g:16xlarge,24xlarge,48xlarge
15 50 1 nitro r8gd:16xlarge,24xlarge,48xlarge u-6tb1:112xlarge,56xlarge u7i-12tb:224xlarge u7i-6tb:112xlarge
15 50 1 nitro u7i-8tb:112xlarge vt1:24xlarge x2gd:16xlarge x2idn:16xlarge,24xlarge,32xlarge
15 50 1 nitro x2iedn:16xlarge,24xlarge,32xlarge x2iezn:12xlarge x8g:16xlarge,24xlarge,48xlarge z1d:12xlarge
15 50 1 xen i3:16xlarge r4:16xlarge
15 50 4 nitro p4d:24xlarge p4de:24xlarge
16 50 1 metal i8ge:metal-24xl
16 50 1 nitro c8gb:16xlarge c8gn:16xlarge i8ge:18xlarge,24xlarge m8gb:16xlarge m8gn:16xlarge r8gb:16xlarge r8gn:16xlarge
16 64 1 metal c8a:metal-24xl m8a:metal-24xl m8azn:metal-12xl,metal-24xl r8a:metal-24xl x8aedz:metal-12xl,metal-24xl
16 64 1 nitro c8a:16xlarge,24xlarge c8i:16xlarge,24xlarge c8i-flex:16xlarge c8ib:16xlarge,24xlarge,32xlarge
16 64 1 nitro c8id:16xlarge,24xlarge c8in:16xlarge,24xlarge,32xlarge c9g:16xlarge c9gd:16xlarge m8a:16xlarge,24xlarge
16 64 1 nitro m8azn:12xlarge,24xlarge m8i:16xlarge,24xlarge m8i-flex:16xlarge m8ib:16xlarge,24xlarge,32xlarge
16 64 1 nitro m8id:16xlarge,24xlarge m8idb:16xlarge,24xlarge,32xlarge m8idn:16xlarge,24xlarge,32xlarge
16 64 1 nitro m8in:16xlarge,24xlarge,32xlarge m9g:16xlarge m9gd:16xlarge r8a:16xlarge,24xlarge r8i:16xlarge,24xlarge
16 64 1 nitro r8i-flex:16xlarge r8ib:16xlarge,24xlarge,32xlarge r8id:16xlarge,24xlarge r8idb:16xlarge,24xlarge,32xlarge
16 64 1 nitro r8idn:16xlarge,24xlarge,32xlarge r8in:16xlarge,24xlarge,32xlarge r9g:16xlarge r9gd:16xlarge
16 64 1 nitro x8aedz:12xlarge,24xlarge x8i:16xlarge,24xlarge
24 50 1 metal c8gb:metal-24xl c8gn:metal-24xl m8gb:metal-24xl m8gn:metal-24xl r8gb:metal-24xl r8gn:metal-24xl
24 50 1 nitro c8gb:24xlarge c8gn:24xlarge m8gb:24xlarge m8gn:24xlarge r8gb:24xlarge r8gn:24xlarge
24 64 1 metal c8a:metal-48xl c8i:metal-48xl,metal-96xl c8ib:metal-48xl c8id:metal-48xl,metal-96xl c8in:metal-48xl
24 64 1 metal c9g:metal-48xl c9gd:metal-48xl m8a:metal-48xl m8i:metal-48xl,metal-96xl m8ib:metal-48xl
24 64 1 metal m8id:metal-48xl,metal-96xl m8idb:metal-48xl m8idn:metal-48xl m8in:metal-48xl m9g:metal-48xl
24 64 1 metal m9gd:metal-48xl r8a:metal-48xl r8i:metal-48xl,metal-96xl r8ib:metal-48xl r8id:metal-48xl,metal-96xl
24 64 1 metal r8idb:metal-48xl r8idn:metal-48xl r8in:metal-48xl r9g:metal-48xl r9gd:metal-48xl x8i:metal-48xl,metal-96xl
24 64 1 nitro c8a:48xlarge c8i:32xlarge,48xlarge,96xlarge c8ib:48xlarge c8id:32xlarge,48xlarge,96xlarge c8in:48xlarge
24 64 1 nitro c9g:24xlarge,48xlarge c9gd:24xlarge,48xlarge g7:24xlarge m8a:48xlarge m8i:32xlarge,48xlarge,96xlarge
24 64 1 nitro m8ib:48xlarge m8id:32xlarge,48xlarge,96xlarge m8idb:48xlarge m8idn:48xlarge m8in:48xlarge
24 64 1 nitro m9g:24xlarge,48xlarge m9gd:24xlarge,48xlarge r8a:48xlarge r8i:32xlarge,48xlarge,96xlarge r8ib:48xlarge
24 64 1 nitro r8id:32xlarge,48xlarge,96xlarge r8idb:48xlarge r8idn:48xlarge r8in:48xlarge r9g:24xlarge,48xlarge
24 64 1 nitro r9gd:24xlarge,48xlarge x8i:32xlarge,48xlarge,64xlarge,96xlarge
"""

OLDER_TABLE = """\
2 4 1 nitro g4ad:2xlarge,xlarge
3 10 1 nitro g4ad:4xlarge
4 15 1 nitro g4ad:8xlarge
4 15 1 xen f1:2xlarge p3:2xlarge
5 30 1 metal u-12tb1:metal u-6tb1:metal u-9tb1:metal
8 30 1 nitro g4ad:16xlarge
8 30 1 xen cr1:8xlarge f1:4xlarge hs1:8xlarge p3:16xlarge,8xlarge
8 50 1 xen f1:16xlarge
15 50 1 metal bmn-sf1:metal c5a:metal c5ad:metal u-18tb1:metal u-24tb1:metal
15 50 1 nitro c7i:32xlarge
15 50 4 nitro dl1:24xlarge
"""
"""Types that `TABLE` lacks, because the region that moto recorded no longer offers them. Source: amazon-vpc-cni-k8s v1.23.1,
pkg/vpc/vpc_ip_resource_limit.go. That file gives no hypervisor for cr1 and hs1, which are older than Nitro and so have Xen."""

DEFAULT_ENIS, DEFAULT_ADDRESSES = 2, 4
"""ENIs, and addresses per ENI, of the smallest Nitro size of the general families (a1.medium, c6g.medium, m7a.medium, ...). Ours: only
nano and micro of the T families, d3 and hpc6id have fewer ENIs or addresses, and these are in the table. EC2's first refusal corrects
a value that is too high; only a later answer of DescribeInstanceTypes corrects one that is too low."""


def from_ec2(instance_type: str, answer: Mapping[str, Any]) -> InstanceLimits | None:
    """Read a DescribeInstanceTypes answer; None if the type is missing or has no usable count."""
    for described_type in answer.get("InstanceTypes", ()):
        network = described_type.get("NetworkInfo", {})
        cards = {card.get("NetworkCardIndex", 0): card for card in network.get("NetworkCards", ())}
        default_card = cards.get(network.get("DefaultNetworkCardIndex", 0), {})
        enis = default_card.get("MaximumNetworkInterfaces", network.get("MaximumNetworkInterfaces", 0))
        addresses = network.get("Ipv4AddressesPerInterface", 0)
        if described_type.get("InstanceType") == instance_type and enis > 0 and addresses > 0:
            return InstanceLimits(
                instance_type=instance_type,
                eni_count=enis,
                ipv4_per_eni=addresses,
                network_card_count=max(network.get("MaximumNetworkCards", 1), 1),
                hypervisor=described_type.get("Hypervisor", ""),
                is_bare_metal=described_type.get("BareMetal", False),
                trunk_capacity=trunk_capacity(instance_type),
                tcp_timeout_s=network.get("ConnectionTrackingConfiguration", {}).get("DefaultTcpEstablishedTimeout", 0),
                further_card_enis=_further_card_enis(cards),
                source="ec2",
            )
    return None


def _further_card_enis(cards: Mapping[int, Mapping[str, Any]]) -> tuple[int, ...]:
    """Return how many ENIs the cards from 1 on take, as far as EC2's answer lists them without a gap."""
    counts: list[int] = []
    while "MaximumNetworkInterfaces" in cards.get(len(counts) + 1, {}):
        counts.append(cards[len(counts) + 1]["MaximumNetworkInterfaces"])
    return tuple(counts)


def from_table(instance_type: str) -> InstanceLimits | None:
    """Find a type in the built-in tables; None if it is missing."""
    family, _, size = instance_type.partition(".")
    for row in (TABLE + OLDER_TABLE).splitlines():
        enis, addresses, cards, kind, *families = row.split()
        for part in families:
            name, _, sizes = part.partition(":")
            if name == family and size in sizes.split(","):
                return InstanceLimits(
                    instance_type=instance_type,
                    eni_count=int(enis),
                    ipv4_per_eni=int(addresses),
                    network_card_count=int(cards),
                    hypervisor="" if kind == "metal" else kind,
                    is_bare_metal=kind == "metal",
                    trunk_capacity=trunk_capacity(instance_type),
                    source="table",
                )
    return None


def safe_default(instance_type: str) -> InstanceLimits:
    """Return limits for a type that nothing lists: so few ENIs and addresses that an unknown type has at least these."""
    capacity = trunk_capacity(instance_type)
    return InstanceLimits(instance_type, DEFAULT_ENIS, DEFAULT_ADDRESSES, trunk_capacity=capacity, source="default")
