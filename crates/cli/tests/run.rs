//! Tests of `weir run` with a shell script as MPI: the command line and environment that it gets, and the report.
#![allow(missing_docs, reason = "test code")]

mod common;
use common::{World, is_empty, output};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};
use weir_engine::job::Job;
use weir_engine::stats::{State, Writer};
use weir_link::shm::node_segment::JobKey;
use weir_proto::{Counters, Scheme};

const SIGPIPE: i32 = 13;

/// Leaves the counters of two endpoints in `counters` of the world: one closed, one as after SIGKILL.
fn leave_counters(world: &World) {
    let directory = world.at("counters");
    std::fs::create_dir(&directory).unwrap();
    let counters =
        Counters { messages_sent: 1234, packets_sent: 1300, stalled_ns: 2_000_000, ..Counters::default() };
    let state = State { mailbox_bytes: 33792, peers: 2, ..State::default() };
    let closed = Writer::create(&directory, Scheme::Unlimited, 1).unwrap();
    closed.close(&counters, &state);
    let killed = Writer::create(&directory, Scheme::Unlimited, 2).unwrap();
    killed.update(&counters, &state);
}

#[test]
fn the_launcher_gets_ranks_environment_and_program() {
    let world = World::new(
        "env | grep -E '^(FI_|MPIR_|MPICH_|PMI_)' | sort; ls -L $FI_PROVIDER_PATH; test -d $FI_WEIR_STATS",
    );
    let (code, stdout, stderr) = output(
        world
            .weir(&[
                "run",
                "-n",
                "3",
                "--flow",
                "unlimited",
                "--launcher-arg",
                "-l",
                "--",
                "program",
                "-n",
                "7",
            ])
            .env("FI_PROVIDER", "tcp")
            .env("PMI_RANK", "5")
            .env("MPICH_NO_LOCAL", "0"),
    );
    // The script takes two words off; `-l` is one more.
    assert_ne!(code, Some(0));
    assert_eq!(
        world.launches(),
        format!("launched -l -n 3 {} -n 7\n", world.at("mpi/bin/program").display())
    );
    let lines: Vec<_> =
        stdout.lines().filter(|line| !line.contains("_PATH=") && !line.contains("STATS=")).collect();
    assert_eq!(
        lines,
        [
            "FI_PROVIDER=weir",
            "FI_WEIR_FLOW=unlimited",
            &format!("FI_WEIR_SHM_DIR={}", world.at("shm").display()),
            "MPIR_CVAR_CH4_NETMOD=ofi",
            "MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_NUM_CELLS=4",
            "MPIR_CVAR_NOLOCAL=1",
            "libweir-fi.so",
        ]
    );
    assert!(
        stderr.contains("weir: note: FI_PROVIDER=tcp from the environment is replaced by FI_PROVIDER=weir\n")
    );
    assert!(stderr.contains("weir: note: MPICH_NO_LOCAL=0 from the environment is not passed on\n"));
}

#[test]
fn output_and_status_are_passed_on() {
    let world = World::new("");
    let (code, stdout, stderr) = output(&mut world.weir(&["run", "-n", "2", "--", "program", "a b", "c"]));
    assert_eq!((code, stdout.as_str()), (Some(0), "ran a b c\n"));
    assert!(
        stderr.contains("weir: the program did not use weir: it succeeded without opening an endpoint"),
        "{stderr}"
    );
    let status =
        |script: &str| output(&mut world.weir(&["run", "-q", "-n", "1", "--", "sh", "-c", script])).0;
    assert_eq!(status("exit 7"), Some(7));
    assert_eq!(status("kill -9 $$"), Some(137));
}

#[test]
fn counters_become_a_table_and_a_record() {
    let world = World::new("");
    leave_counters(&world);
    let copy = format!("cp {}/* $FI_WEIR_STATS/", world.at("counters").display());
    let record = world.at("report.json");
    let (code, _, stderr) = output(&mut world.weir(&[
        "run",
        "-n",
        "1",
        "--json",
        record.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        &copy,
    ]));
    assert_eq!(code, Some(0));
    let pid = std::process::id();
    assert!(
        stderr.contains("2,468") && stderr.contains("4.00 ms") && stderr.contains("66.0 KiB"),
        "{stderr}"
    );
    assert!(stderr.contains(&format!("weir: process {pid} ended without closing the endpoint")), "{stderr}");
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    assert_eq!(record["schema"], "weir-run-1");
    assert_eq!(record["used_weir"], true);
    assert_eq!(record["exit_status"], 0);
    assert_eq!(record["ranks"][0]["pid"], pid);
    assert_eq!(record["ranks"][0]["closed"], false);
    assert_eq!(record["ranks"][0]["endpoints"], 2);
    assert_eq!(record["total"]["counters"]["messages_sent"], 2468);
    assert_eq!(record["settings"]["FI_WEIR_FLOW"], "demand");
    assert_eq!(record["mpi"]["kind"], "mpich");
}

/// Runs a program that leaves counters, does `damage` and exits with `exit_status`; with `--json` and `--report`.
fn run_and_damage(damage: impl Fn(&World) -> String, exit_status: u8) -> (World, Option<i32>, String) {
    let world = World::new("");
    leave_counters(&world);
    let counters = world.at("counters");
    let script =
        format!("cp {}/* $FI_WEIR_STATS/; {}; exit {exit_status}", counters.display(), damage(&world));
    let (record, place) = (world.at("record.json"), world.at("place"));
    let (record, place) = (record.to_str().unwrap(), place.to_str().unwrap());
    let words = ["run", "-n", "1", "--json", record, "--report", place, "--", "sh", "-c", &script];
    let (code, _, stderr) = output(&mut world.weir(&words));
    (world, code, stderr)
}

#[test]
fn an_error_after_the_program_has_ended_keeps_its_exit_status_and_the_other_outputs() {
    let page_of = |world: &World| std::fs::read_to_string(world.at("place/report.html")).unwrap();
    // The program succeeds, and an error of weir gives 1; or it fails, and its exit status remains.
    for (program, expected) in [(0, 1), (7, 7)] {
        let (world, code, stderr) = run_and_damage(|_| String::from("rm -r $FI_WEIR_STATS"), program);
        assert_eq!(code, Some(expected), "{stderr}");
        assert_eq!(stderr.matches("weir: cannot read the counters in ").count(), 1, "{stderr}");
        assert!(!stderr.contains("did not use weir"), "without counters this is not known: {stderr}");
        assert!(world.at("record.json").is_file() && page_of(&world).ends_with("</html>\n"));

        let (world, code, stderr) = run_and_damage(|_| String::from("rm -r $FI_WEIR_TRACE"), program);
        assert_eq!(code, Some(expected), "{stderr}");
        assert!(stderr.contains("weir: cannot read the traces in ") && stderr.contains("2,468"), "{stderr}");
        assert!(world.at("record.json").is_file() && page_of(&world).contains("2,468"));

        let damage = |world: &World| format!("mkdir {}", world.at("record.json").display());
        let (world, code, stderr) = run_and_damage(damage, program);
        assert_eq!(code, Some(expected), "{stderr}");
        let not_written = format!("weir: cannot write {}: Is a directory", world.at("record.json").display());
        assert!(stderr.contains(&not_written) && page_of(&world).contains("2,468"), "{stderr}");

        let damage = |world: &World| format!("mkdir {}", world.at("place/report.html").display());
        let (world, code, stderr) = run_and_damage(damage, program);
        assert_eq!(code, Some(expected), "{stderr}");
        assert!(stderr.contains("weir: cannot write the page ") && stderr.contains("2,468"), "{stderr}");
        assert!(world.at("record.json").is_file());

        let damage = |world: &World| format!("rmdir {}", world.at("shm").display());
        let (world, code, stderr) = run_and_damage(damage, program);
        assert_eq!(code, Some(expected), "{stderr}");
        assert!(stderr.contains("weir: cannot list the mailboxes in "), "{stderr}");
        assert!(world.at("record.json").is_file() && page_of(&world).contains("2,468"));
    }
}

#[test]
fn the_page_of_a_run_without_samples_has_lines_from_the_counters() {
    let (world, code, stderr) = run_and_damage(|_| String::from(":"), 0);
    assert_eq!(code, Some(0), "{stderr}");
    let page = std::fs::read_to_string(world.at("place/report.html")).unwrap();
    let (_, memory) = page.split_once("<h2>Memory of each rank over time</h2>").unwrap();
    let (memory, _) = memory.split_once("<h2>").unwrap();
    for (figure, has_line) in [
        ("mailbox: at most 33.0 KiB", true),
        ("unexpected payload: at most 0 B", true),
        ("process (RssAnon + RssShmem): not sampled", false),
    ] {
        let (_, figure) = memory.split_once(figure).unwrap_or_else(|| panic!("{figure}: {memory}"));
        let (figure, _) = figure.split_once("</figure>").unwrap();
        // The colours of the first two ranks.
        let lines = figure.matches("#0072B2").count() + figure.matches("#D55E00").count();
        assert_eq!((lines >= 2, figure.contains("<svg")), (has_line, has_line), "{figure}");
    }
}

#[test]
fn json_follows_the_output_and_quiet_prints_errors_only() {
    let world = World::new("");
    leave_counters(&world);
    let copy = format!("cp {}/* $FI_WEIR_STATS/; echo hello", world.at("counters").display());
    let (_, stdout, stderr) =
        output(&mut world.weir(&["run", "-n", "1", "-q", "--json", "--", "sh", "-c", &copy]));
    let json = stdout.strip_prefix("hello\n").unwrap();
    assert!(serde_json::from_str::<serde_json::Value>(json).is_ok());
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn counters_of_earlier_runs_are_ignored() {
    let world = World::new("");
    leave_counters(&world);
    let mut command = world.weir(&["run", "-n", "1", "--", "true"]);
    let (code, _, stderr) = output(command.env("FI_WEIR_STATS", world.at("counters")));
    assert!(code == Some(0) && stderr.contains("the program did not use weir"), "{code:?}: {stderr}");
}

#[test]
fn a_signal_reaches_the_launcher_and_leaves_no_process() {
    let world = World::new("");
    let scratch = world.at("tmp");
    std::fs::create_dir(&scratch).unwrap();
    let script = "trap 'echo got it; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = world
        .weir(&["run", "-n", "1", "--", "sh", "-c", script])
        .env("TMPDIR", &scratch)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let kill = std::process::Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(kill.success());
    assert_eq!(lines.next().unwrap().unwrap(), "got it");
    let begun = Instant::now();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(5));
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(is_empty(&scratch));
}

#[test]
fn a_closed_pipe_ends_the_command_silently() {
    let world = World::new("");
    for words in [&["settings"][..], &["doctor"], &["help"], &["reproduce", "list"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = world.weir(words).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.signal(), stderr.as_str()), (Some(SIGPIPE), ""), "{words:?}");
    }
}

#[test]
fn a_closed_pipe_ends_child_processes() {
    let world = World::new("");
    // Also if the shell that starts weir ignores SIGPIPE.
    let script = "trap '' PIPE; exec \"$0\" run -q -n 1 -- grep -E 'Sig(Ign|Blk)' /proc/self/status";
    let command = world.weir(&[]);
    let weir = command.get_program().to_owned();
    let envs: Vec<_> =
        command.get_envs().map(|(name, value)| (name.to_owned(), value.unwrap().to_owned())).collect();
    let mut shell = std::process::Command::new("/bin/sh");
    let (code, stdout, stderr) = output(shell.args(["-c", script]).arg(weir).env_clear().envs(envs));
    assert_eq!(code, Some(0), "{stderr}");
    let sets: Vec<_> = stdout.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert_eq!(sets.len(), 2, "{stdout}");
    for set in sets {
        assert_eq!(u64::from_str_radix(set, 16).unwrap() >> (SIGPIPE - 1) & 1, 0, "{stdout}");
    }
}

/// Not a test: a rank for the next test, in a process of its own. It ends some time after its launcher, without closing.
#[test]
#[ignore = "a rank for another test"]
fn rank_that_outlives_its_launcher() {
    let Some(root) = std::env::var_os("WORLD").map(std::path::PathBuf::from) else { return };
    let directory = root.join("shm").into_os_string().into_string().unwrap();
    let lookup = |variable: &str| (variable == "FI_WEIR_SHM_DIR").then(|| directory.clone());
    let settings = weir_engine::config::Settings::from_lookup(lookup).unwrap();
    let job = Job::from(1).with_key(JobKey::new(&"a job"));
    let engine = weir_engine::Engine::open(&settings, job, false).unwrap();
    let _counters = Writer::create(&root.join("counters"), Scheme::Unlimited, 1).unwrap();
    std::fs::write(root.join("opened"), "").unwrap();
    while !root.join("launcher-ended").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(300));
    std::mem::forget(engine);
    let _ = std::process::Command::new("kill").arg("-9").arg(std::process::id().to_string()).status();
}

#[test]
fn the_files_of_a_rank_that_outlives_its_launcher_are_removed() {
    let world = World::new("");
    std::fs::create_dir(world.at("counters")).unwrap();
    let mut rank = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "rank_that_outlives_its_launcher"])
        .env("WORLD", world.at(""))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while !world.at("opened").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let names = || std::fs::read_dir(world.at("shm")).unwrap().count();
    assert_eq!(names(), 3, "the mailbox, the node segment and the lock file");
    let shm = world.at("shm");
    let clean = || output(&mut world.weir(&["clean", "--shm-dir", shm.to_str().unwrap()])).1;
    assert_eq!(clean(), format!("removed 0 stale mailboxes from {}\n", shm.display()));
    assert_eq!(names(), 3, "they are in use");
    let script = format!(
        "cp {}/* $FI_WEIR_STATS/; touch {}",
        world.at("counters").display(),
        world.at("launcher-ended").display()
    );
    let (code, _, stderr) = output(&mut world.weir(&["run", "-n", "1", "--", "sh", "-c", &script]));
    assert_eq!(code, Some(0));
    assert!(is_empty(&world.at("shm")), "{stderr}");
    assert!(stderr.contains("weir: removed 1 stale mailboxes from"), "{stderr}");
    rank.wait().unwrap();
}

#[test]
fn help_lists_every_option() {
    let world = World::new("");
    let (code, stdout, _) = output(&mut world.weir(&["help", "settings"]));
    assert_eq!(code, Some(0));
    assert!(stdout.contains("FI_WEIR_MAILBOX_SLOTS  (allowed: 0, or 1 to 16777216; default: 0)"), "{stdout}");
    let (_, listed, _) = output(&mut world.weir(&["settings"]));
    for setting in weir_engine::config::SETTINGS {
        assert!(stdout.contains(setting.variable) && listed.contains(setting.variable));
    }
    for words in
        [&["--help"][..], &["run", "--help"], &["doctor", "--help"], &["bench", "pingpong", "--help"]]
    {
        assert_eq!(output(&mut world.weir(words)).0, Some(0));
    }
}

/// A file of hosts, and a remote shell.
fn pretend_hosts(world: &World, hosts: &str, shell: &str) {
    std::fs::write(world.at("hosts"), hosts).unwrap();
    world.script("shell", shell);
}

#[test]
fn the_launcher_gets_the_hosts_and_the_remote_shell() {
    let world = World::new("cat \"$6\"; shift 6; test -d $FI_WEIR_STATS && ls $FI_PROVIDER_PATH");
    pretend_hosts(
        &world,
        "localhost:2\n127.0.0.1\n",
        "echo $1 >> $(dirname $0)/reached; shift; exec sh -c \"$1\"",
    );
    let (hosts, shell) = (world.at("hosts"), world.at("shell"));
    let words =
        ["run", "-n", "3", "--hosts", hosts.to_str().unwrap(), "--remote-shell", shell.to_str().unwrap()];
    let mut command = world.weir(&words);
    let (code, stdout, stderr) = output(command.args(["--", "program", "x"]));
    assert_eq!(
        (code, stdout.as_str()),
        (Some(0), "localhost:2\n127.0.0.1:1\nlibweir-fi.so\nran x\n"),
        "{stderr}"
    );
    let launches = world.launches();
    let begins = format!("launched -launcher ssh -launcher-exec {} -f ", shell.display());
    assert!(launches.starts_with(&begins), "{launches}");
    let reached = std::fs::read_to_string(world.at("reached")).unwrap();
    let mut reached: Vec<_> = reached.lines().collect();
    reached.sort_unstable(); // all hosts are asked at the same time
    assert_eq!(reached, ["127.0.0.1", "localhost"]);
    assert!(stderr.contains("weir: ranks of each host: localhost 2, 127.0.0.1 1\n"), "{stderr}");
}

#[test]
fn the_program_does_not_start_without_every_host() {
    let world = World::new("");
    pretend_hosts(&world, "localhost\n127.0.0.1\n", "echo Host key verification failed. >&2; exit 255");
    let (hosts, shell) = (world.at("hosts"), world.at("shell"));
    let mut command = world.weir(&["run", "-n", "2", "--hosts", hosts.to_str().unwrap(), "--", "program"]);
    let (code, stdout, stderr) = output(command.env("WEIR_REMOTE_SHELL", shell));
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(
        stderr.starts_with("weir: localhost: the helper has ended: Host key verification failed.; `"),
        "{stderr}"
    );
    assert_eq!(world.launches(), "");
    let (code, _, stderr) =
        output(&mut world.weir(&["run", "-n", "2", "--hosts", "/no/such/file", "--", "program"]));
    assert_eq!(code, Some(2));
    assert!(stderr.starts_with("weir: --hosts /no/such/file: No such file or directory"), "{stderr}");
}
