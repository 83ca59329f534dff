"""The pure core: identities, states, decisions and errors. No I/O, no clock, standard library only.

Decisions are in this package and can be tested with values. Effects are in the adapters, and import-linter checks the boundary.
The modules:

- What the datastore records: `ids`, `address`, `attachment`, `uplink`, `eni`, `intent`, `tombstone`. `snapshot` has all rows of one
  moment, and `snapshot_checks` looks for contradictions between them. `history` has the events. `tenures`, `history_subject` and
  `history_answer` answer questions from the events.
- How the pool grows and shrinks: `plan` decides. Its input is a `pool_snapshot` (made of `pool_counts`, `growth_state`, `surplus`,
  `seen_demand` and `repeats`) and `pool_settings`; its output is a set of `pool_actions`. `placement`, `prefix_exchange` and `release`
  choose the ENIs, and `auto_target` the target. `growth_blocker` and `blocked` explain why the pool cannot grow, and `freeze` has the
  causes that stop it. `capacity` counts how many pods the node can hold.
- Which ENIs may be used: `eni_tags`, `leaked_eni`, `subnets`, and for several pools on a node `pod_pools`, `pool_shares` and
  `network_cards`. `network_file` reads the operator's file about these.
- What the sources of truth show: `cloud` and `cloud_evidence` (EC2), `trunk`, `instance_facts`, `metadata_evidence`, `sandbox` (the
  runtime), `kernel`. `absences` counts the answers that lack an object, and `evidence` decides what happens to a sandbox.
  `call_report` counts EC2 calls.
- How a sandbox is connected: `legs` has its links, `kernel_numbers` and `source_rules` their tables and priorities.
  `wiring_comparison` compares a sandbox with a survey; `wiring_difference`, `routing_difference` and `repairs` are the results.
  `packet_path` is about one packet, and `sandbox_links` about the links that are left of a sandbox.
- What a pod or an ADD asks for: `cni_request`, `cniresult`, `prev_result`, `cni_versions`, `pod_annotations`, `pod_facts`, `pod_snat`,
  `pinned_address`, `card_interfaces`, `enforcing_mode`. The conflist of the runtime: `conflist_parts`, `conflist_copies`,
  `chain_versions`, `companions`.
- amazon-vpc-cni-k8s: `aws_node` and `aws_node_export`, and in `legs` the modules whose names begin with `aws_node_`.
- What people read: `errors` has the classes, `cause` the causes of errors and conditions. Codes are separate from their sentences, so
  that tests and programs use the codes: `conditions` and `condition_messages`, `finding_codes`, `difference_codes` and
  `difference_messages`, `repair_messages`, `verdict_reasons`, `refusals` and `pinned_refusals`, `failures`, `disk_refusal`, `defects`.
- Values and text for all of them: `family` (IPv4 or IPv6), `record` (the decorator of our classes), `words`, `json_form`,
  `time_text`, and `redaction`, which removes secrets from text.
"""
