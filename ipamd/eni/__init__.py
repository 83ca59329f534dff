"""The ENIs that EC2 gave this node, with their addresses and prefixes: our calls for them, and the checks that they still exist.

What is where:

- What EC2 has is compared with the rows by `enis`. `resync` decides when: `links` and `external_changes` notice that something
  differs, and an answer that leaves a doubt requests another one. `differences` keeps the contradictions that are found.
- What the plan of `ipamd/pool/` wants is requested from EC2 by `provisioner`. `operations` has the table of what follows each answer
  of EC2, and `steps` makes the calls. `limits` has the refusals in force, `subnets` chooses the subnet of a new ENI, and
  `release_guard` decides whether a release may go on.
- What is known about an ENI besides its row is in `book`, with one record for each ENI; `earlier_changes` fills it after a start.
- `routing` sets up the host's side of an ENI. Before that its addresses are not assigned.
- Beside the plan, `pinned` obtains addresses that pods ask for, `security_groups` makes other ENIs follow the primary one, `leaked`
  deletes what a lost datastore left at EC2, and `legs/` asks EC2 about branch ENIs.

Only the pool's thread makes calls that change something at EC2. Each class says what other threads may call.
"""
