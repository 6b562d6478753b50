//! Tests of the simulator through its public interface. They are one program, since twenty, each with the simulator in it, take
//! longer to build than to run. `cargo test -p weir-sim --test simulator goal::` runs the tests of one file.

mod collectives;
mod copies;
mod extoll;
mod faults;
mod float_sums;
mod goal;
mod groups;
mod hosts;
mod infiniband;
mod nas;
mod nic_workloads;
mod offload;
mod real_engine;
mod reductions;
mod reliable;
mod support;
mod switched;
mod timers;
mod traces;
mod workload;
mod worlds;
