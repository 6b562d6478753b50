//! Tests of `weir bench` with a shell script as MPI: the jobs that it runs, the records that it writes, its
//! messages.
#![allow(missing_docs, reason = "test code")]

mod common;
use common::{World, output};

/// An `mpicc` whose programs print results; over libfabric's tcp they fail.
fn world() -> World {
    let world = World::new("");
    world.script(
        "mpi/bin/mpicc",
        "cat > \"$4\" <<'END'\n\
         #!/bin/sh\n\
         if [ \"$FI_PROVIDER\" = tcp ]; then echo 'error: no network' >&2; exit 3; fi\n\
         for bytes in 8 2048 65536 1048576; do echo latency bytes=$bytes us=1.5; done\n\
         END\n\
         chmod +x \"$4\"",
    );
    world
}

fn bench(world: &World, words: &[&str]) -> (Option<i32>, String, String) {
    let (out, mpi) = (world.at("out"), world.at("mpi"));
    let (out, mpi) = (out.to_str().unwrap(), mpi.to_str().unwrap());
    let common = ["bench", "--quiet", "--measure", "latency", "--out", out, "--mpi", mpi];
    output(&mut world.weir(&[&common, words].concat()))
}

fn launches(world: &World) -> usize {
    world.launches().lines().count()
}

#[test]
fn an_interrupted_bench_resumes_and_a_complete_one_restarts() {
    let world = world();
    let words = ["--only", "weir,mpich-shm", "--repeat", "3"];
    let (status, stdout, stderr) = bench(&world, &words);
    assert_eq!((status, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert_eq!(launches(&world), 6);
    assert!(
        stdout.contains("1.50 us (1.50 .. 1.50 us)") && stdout.contains("1.00 x weir, within noise"),
        "{stdout}"
    );
    assert!(stdout.contains("0 of 12 targets reached") && world.at("out/bench.html").exists(), "{stdout}");

    let samples = world.at("out/samples.jsonl");
    let text = std::fs::read_to_string(&samples).unwrap();
    assert_eq!(text.lines().count(), 7, "six jobs, and the end of the run");
    // As after a kill while the fifth line was written.
    let kept: Vec<_> = text.lines().take(4).collect();
    std::fs::write(&samples, format!("{}\n{{\"run\":", kept.join("\n"))).unwrap();
    let (status, _, stderr) = bench(&world, &words);
    assert_eq!((status, launches(&world)), (Some(0), 8));
    assert!(stderr.starts_with("resuming: 4 of 6 jobs are in "), "{stderr}");

    let (status, _, stderr) = bench(&world, &words);
    assert_eq!((status, stderr.as_str(), launches(&world)), (Some(0), "", 14), "a complete run starts anew");

    // A run with other jobs does not use these records.
    std::fs::write(&samples, kept.join("\n")).unwrap();
    std::fs::write(world.at("libweir-fi.so"), "another build").unwrap();
    let (_, _, stderr) = bench(&world, &words);
    assert_eq!((stderr.as_str(), launches(&world)), ("", 20));
}

#[test]
fn fresh_discards_earlier_samples() {
    let world = world();
    let words = ["--only", "weir", "--repeat", "2"];
    bench(&world, &words);
    let samples = world.at("out/samples.jsonl");
    let text = std::fs::read_to_string(&samples).unwrap();
    std::fs::write(&samples, text.lines().next().unwrap()).unwrap();
    let (status, _, stderr) = bench(&world, &[&words[..], &["--fresh"]].concat());
    assert_eq!((status, stderr.as_str(), launches(&world)), (Some(0), "", 4));
}

#[test]
fn a_failed_job_is_reported_and_not_retried() {
    let world = world();
    let (status, stdout, _) = bench(&world, &["--only", "weir,ofi-tcp", "--repeat", "3"]);
    assert_eq!((status, launches(&world)), (Some(1), 4), "{stdout}");
    let line = "libfabric tcp, latency-2: failed: status 3, error: no network; not tried again";
    assert!(stdout.contains(line), "{stdout}");
}

#[test]
fn a_missing_mpi_fails_only_if_it_was_named() {
    let world = world();
    // The only MPI of this world is an MPICH.
    let run = |only: &str| bench(&world, &["--only", only, "--repeat", "1"]);
    let (status, stdout, _) = run("weir,intel-mpi");
    assert_eq!(status, Some(1));
    assert!(stdout.contains("Intel MPI is not compared: no Intel MPI found"), "{stdout}");
    std::fs::remove_file(world.at("libweir-fi.so")).unwrap();
    let (status, stdout, _) = run("mpich-shm");
    assert_eq!(status, Some(0), "{stdout}");
    let (status, stdout, _) = run("weir,mpich-shm");
    assert_eq!(status, Some(1));
    assert!(stdout.contains("weir is not compared: libweir-fi.so was not found"), "{stdout}");
}

#[test]
fn a_record_on_standard_output_stands_alone() {
    let world = World::new("");
    for words in [&["memory", "--peers", "64"][..], &["sim", "--quick", "--only", "barrier", "--quiet"]] {
        let (status, stdout, stderr) =
            output(&mut world.weir(&[&["bench"], words, &["--json", "-"]].concat()));
        assert_eq!((status, stderr.as_str()), (Some(0), ""), "{words:?}");
        let record: serde_json::Value = serde_json::from_str(&stdout).expect(&stdout);
        assert_eq!(record["schema"].as_str().map(|schema| schema.starts_with("weir-bench-")), Some(true));
    }
}
