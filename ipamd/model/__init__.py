"""The pure core: identities, states, decisions and errors. No I/O, no clock, standard library only.

Decisions are here and can be tested with values; effects are in the adapters. import-linter checks the boundary. What is where:

- What the datastore records: `ids`, `address`, `attachment`, `eni`, `intent`, `tombstone`. `snapshot` has all rows of one moment,
  `snapshot_checks` looks for contradictions. `history` has the events, and `tenures` and `history_answer` answer questions from them.
- How the pool grows and shrinks: `plan` decides. Its input is a `pool_snapshot` (made of `pool_counts`, `growth_state`, `surplus` and
  `seen_demand`) and `pool_settings`; its output are `pool_actions`. `placement`, `prefix_exchange` and `release` choose the ENIs,
  `auto_target` the target, `growth_blocker` explains why nothing can be done, and `freeze` has the causes that stop the pool.
- Which ENIs may be used: `eni_tags`, `leaked_eni`, `subnets`, and for several pools on a node `pod_pools`, `pool_shares` and
  `network_cards`. `network_file` reads the operator's file about these.
- What the sources of truth show: `cloud` and `cloud_evidence` (EC2), `metadata_evidence`, `sandbox` (the runtime), `kernel`.
  `absences` counts answers, and `evidence` decides what becomes of a sandbox.
- How a sandbox is connected: `legs` has its links, `kernel_numbers` their tables and priorities. `wiring_comparison` compares a
  sandbox with a survey; `wiring_difference`, `routing_difference` and `repairs` are the results. `packet_path` is about one packet.
- What a pod or an ADD asks for: `cni_request`, `cniresult`, `prev_result`, `cni_versions`, `pod_annotations`, `pod_facts`, `pod_snat`,
  `pinned_address`, `card_interfaces`. The conflist of the runtime: `conflist_parts`, `conflist_copies`, `chain_versions`.
- amazon-vpc-cni-k8s: `aws_node` and `aws_node_export`, and in `legs` the modules whose names begin with `aws_node_`.
- What people read: `errors` has the classes. A code and its sentence are apart, so that tests and programs use the code:
  `conditions` and `condition_messages`, `finding_codes`, `difference_codes` and `difference_messages`, `repair_messages`,
  `verdict_reasons`, `refusals`, `failures`.
- Values and text for all of them: `family` (IPv4 or IPv6), `record` (the decorator of our classes), `words`, `json_form`,
  `time_text`.
"""
