//! A call from its first byte to its one outcome, against a server in memory or on a socket.

#[path = "../support/mod.rs"]
mod support;

mod age;
mod blocking;
mod bodies_admission;
mod bodies_budget;
mod bodies_drain;
mod bodies_interleaved;
mod bodies_permits;
mod bodies_round_trips;
mod bodies_rules;
mod bodies_slow;
mod bodies_waiting;
mod computing;
mod context;
mod deadlines;
mod demotion;
mod ends;
mod errors;
mod evolving;
mod exits;
mod extensions;
mod familiar_greeter;
mod familiar_route_guide;
mod familiar_world;
mod late_frames;
mod limit_changes;
mod limit_equivalents;
mod limit_groups;
mod limit_late;
mod limit_load;
mod limit_priority;
mod limit_queue;
mod limit_refusals;
mod limit_tenants;
mod limit_waited;
mod odd_values;
mod panic_answers;
mod panics;
mod refused;
#[cfg(feature = "config")]
mod settings;
mod sizes;
mod stream_budget;
mod stream_credit;
mod stream_ends;
mod stream_holdups;
mod stream_misuse;
mod stream_model;
mod stream_pacing;
mod stream_panics;
mod streams;
mod tasks;
mod tower;
mod traces;
