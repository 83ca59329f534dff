"""The ENIs that EC2 gave this node, with their addresses and prefixes: our calls for them, and the checks that they still exist.

- `enis` compares EC2's answers with the rows of the datastore. `resync` schedules the comparisons: `links` and `external_changes`
  request one when something differs, and so does `enis` after an answer that leaves a doubt. `differences` keeps the contradictions
  between EC2 and the rows.
- `provisioner` carries out the plan of `ipamd/pool/`. Each operation has an intent, a record on disk from before the first call until
  the outcome is stored. `operations` has the table of the next step after each answer of EC2, and `steps` makes the calls. `limits`
  has the calls that are not made for a while because EC2 refused them, `subnets` chooses the subnet of a new ENI, and `release_guard`
  decides whether a release may go on.
- `book` has one record for each ENI, with the facts that are not in its row. `earlier_changes` adds the releases of earlier processes.
- `routing` sets up the host routing of an ENI. Its addresses are not assigned before that.
- Apart from the plan, `pinned` obtains addresses that pods ask for, `security_groups` gives the other ENIs the security groups of the
  primary one, `leaked` deletes ENIs that this node created and that a lost datastore forgot, and `legs/` asks EC2 about branch ENIs.

Only the pool's thread makes calls that change something at EC2. Each class says what other threads may call.
"""
