//! Tests of the command: each wrong input is reported before anything starts, by one line that names it and an exit
//! status other than 0.
#![allow(missing_docs, reason = "test code")]

mod common;
use common::{World, output};

#[track_caller]
fn refused(world: &World, command: &mut std::process::Command, status: i32, line: &str) {
    let (code, stdout, stderr) = output(command);
    assert_eq!(stderr, format!("weir: {line}\n"));
    assert_eq!((code, stdout.as_str()), (Some(status), ""));
    assert_eq!(world.launches(), "", "nothing may have been started");
}

#[test]
fn wrong_options() {
    let world = World::new("");
    let check = |words: &[&str], line: &str| refused(&world, &mut world.weir(words), 2, line);
    check(
        &["run", "-n", "0", "--", "program"],
        "invalid value '0' for '--ranks <N>': 0 is not in 1..=4096 (see --help)",
    );
    check(
        &["run", "--", "program"],
        "the following required arguments were not provided: --ranks <N> (see --help)",
    );
    check(
        &["run", "-n", "2", "--set", "FLOW=static", "--", "program"],
        "--set FLOW=static: the form is --set FI_WEIR_NAME=VALUE; `weir settings` lists the names",
    );
    check(&["bench", "pingpong", "--sizes", "2147483648"], "--sizes 2147483648: at most 1073741824 bytes");
    check(
        &["bench", "--ranks", "2,1"],
        "invalid value '1' for '--ranks <N>': 1 is not in 2..=1024 (see --help)",
    );
    check(
        &["bench", "--only", "weir,pigeons"],
        "invalid value 'pigeons' for '--only <TRANSPORT>': possible values: weir, mpich-shm, ofi-shm, ofi-tcp, ucx, \
         open-mpi, intel-mpi, ofi-rxd, weir-ofi-tcp, weir-ofi-tcp-unprotected, weir-authenticate, weir-unprotected, \
         weir-collectives-across (see --help)",
    );
    check(
        &["bench", "--measure", "weight"],
        "invalid value 'weight' for '--measure <MEASURE>' [possible values: latency, bandwidth, rate, collectives, incast, \
         flood, memory] (see --help)",
    );
    check(
        &["bench", "pingpong", "--ranks-barrier", "1"],
        "invalid value '1' for '--ranks-barrier <N>': 1 is not in 2..=1024 (see --help)",
    );
}

#[test]
fn wrong_settings_whatever_way_they_come() {
    let world = World::new("");
    let run = |options: &[&str]| {
        let words = [&["run", "-n", "8"], options, &["--", "program"]].concat();
        world.weir(&words)
    };
    let schemes = "FI_WEIR_FLOW=fast: allowed are unlimited, hardware, static, static-connection, adaptive, dynamic, demand";
    refused(&world, &mut run(&["--flow", "fast"]), 2, schemes);
    refused(&world, run(&[]).env("FI_WEIR_FLOW", "fast"), 2, schemes);
    refused(&world, &mut run(&["--set", "FI_WEIR_SPIN=-1"]), 2, "FI_WEIR_SPIN=-1: allowed are 0 to 1000000");
    refused(&world, &mut run(&["--credit-slots", "17"]), 2, "FI_WEIR_CREDIT_SLOTS=17: allowed are 1 to 16");
    refused(
        &world,
        &mut run(&["--mailbox-slots", "10"]),
        2,
        "FI_WEIR_MAILBOX_SLOTS=10: 8 ranks with 2 credit slots each need at least 16",
    );
    refused(
        &world,
        run(&[]).env("FI_WEIR_SHM_DIR", "/no/such"),
        2,
        "FI_WEIR_SHM_DIR=/no/such: is not an existing directory; create it or name another",
    );
    refused(
        &world,
        &mut run(&["--flow", "static", "--set", "FI_WEIR_FLOW=unlimited"]),
        2,
        "FI_WEIR_FLOW has two values: static and unlimited; give one",
    );
    for command in [run(&[]).env("FI_WEIR_FLOWS", "static"), &mut run(&["--set", "FI_WEIR_FLOWS=static"])] {
        let (code, _, stderr) = output(command);
        assert_eq!(code, Some(2));
        assert!(
            stderr.starts_with("weir: FI_WEIR_FLOWS: no such setting; did you mean FI_WEIR_FLOW? "),
            "{stderr}"
        );
        assert_eq!(stderr.lines().count(), 1);
    }
}

#[test]
fn programs_that_are_missing_or_no_programs() {
    let world = World::new("");
    let bins = format!("PATH, {}", world.at("mpi/bin").display());
    let run = |program: &str| world.weir(&["run", "-n", "2", "--", program]);
    refused(&world, &mut run("no-such"), 127, &format!("no-such: program not found (searched: {bins})"));
    refused(&world, &mut run("/no/such"), 127, "/no/such: program not found (searched: that path)");
    refused(
        &world,
        &mut run("/etc/passwd"),
        126,
        "/etc/passwd: is not an executable file; make it executable (chmod +x) or name another",
    );
}

#[test]
fn no_mpi_and_no_plug_in() {
    let world = World::new("");
    let run = || world.weir(&["run", "-n", "2", "--", "true"]);
    // An empty PATH, so that there is no MPI in it.
    refused(
        &world,
        run().env_remove("WEIR_MPI").env("PATH", world.at("empty")),
        127,
        "no MPI found (searched for mpiexec in WEIR_MPI, an active virtual environment, PATH, I_MPI_ROOT and weir's own \
         environments); name one with --mpi PATH",
    );
    refused(
        &world,
        run().env("WEIR_MPI", "/no/such"),
        127,
        "WEIR_MPI /no/such: is no MPI; allowed are mpich, openmpi, intel, a prefix with bin/mpiexec, or an mpiexec",
    );
    refused(
        &world,
        run().env("WEIR_PROVIDER_PATH", "/no/such"),
        1,
        "libweir-fi.so was not found (searched: /no/such); build it with `make build`, or set WEIR_PROVIDER_PATH",
    );
    world.script("mpi/bin/mpiexec", "echo slurm 23");
    let (code, _, stderr) = output(&mut run());
    assert_eq!(code, Some(127));
    assert!(
        stderr.ends_with("is not the launcher of MPICH, Open MPI or Intel MPI (it prints: slurm 23)\n"),
        "{stderr}"
    );
}
