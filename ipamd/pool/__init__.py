"""The warm pool: `maintainer` plans and acts, `planned_pool` has the state of each pool, `demand_window` measures the demand."""
