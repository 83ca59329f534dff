"""Which sandbox has which address: ADD, DEL, CHECK and GC, and the comparison of the rows with the container runtime.

What is where:

- ADD is `attach`. It takes the first leg from one of the sources in `legs/`, wires it and records it. What a pod may choose is decided
  by `pod_snat_choice`, `pod_pool_choice`, `pinned_address_choice` and `multi_nic_choice`, and the name of its host veth by
  `veth_names`. `repeated_adds` and `last_pods` bound what one failing pod costs.
- DEL is `detach`. Then `cooldown` deletes the links, and frees the address when it has cooled. `spooled_deletes` carries out the DELs
  that the plugin wrote to disk.
- CHECK is `check`, and GC is `gc`. `recorded_interfaces` finds a pod's further interfaces for DEL and CHECK. `hooks` is the Protocol
  by which ADD and DEL reach the network policy agent.
- `runtime` asks the container runtime for its sandboxes, and reaps those that are gone by the verdict of `judge`. `event_stream`
  brings the next list forward, and `missed_events` counts what the events did not announce.
- `startup` compares rows, kernel and runtime after a start. What cannot be decided then is kept by `quarantine`, until it is adopted
  (`legs/adoption.py`) or proven gone.
"""
