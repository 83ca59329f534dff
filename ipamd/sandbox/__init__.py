"""Which sandbox has which address: ADD, DEL, CHECK and GC, and the comparison of the rows with the container runtime.

Modules:

- ADD is `attach`. It takes the first leg (the veth pair with the pod's address) from one of the sources in `legs/`, wires it and
  records it. `pod_snat_choice`, `pod_pool_choice`, `pinned_address_choice` and `multi_nic_choice` read a pod's choices and check them
  against the settings.
  `veth_names` names the sandbox's host veth. `repeated_adds` and `last_pods` bound the number of addresses that one failing pod uses.
- DEL is `detach`. Then `cooldown` deletes the links, and frees the address when it has cooled. `spooled_deletes` carries out the DELs
  that the plugin wrote to disk.
- CHECK is `check`, and GC is `gc`. `hooks` is the Protocol by which ADD and DEL reach the network policy agent.
- `runtime` lists the sandboxes of the container runtime again and again, and reaps recorded sandboxes that are gone according to
  `judge`. An event in `event_stream` makes the next list come earlier. `missed_events` counts changes that no event announced.
- `startup` compares rows, kernel and runtime after a start. If these disagree about a sandbox, `quarantine` keeps it until it is
  adopted (`legs/adoption.py`) or proven gone.
"""
