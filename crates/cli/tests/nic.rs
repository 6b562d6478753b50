//! Tests of `weir nic` on a pretended host. Where there are none, they print why and do nothing.
#![allow(missing_docs, reason = "test code")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use weir_nic::pretended::Network;

fn weir(network: &Network, words: &[&str]) -> Output {
    network.at(0, || Command::new(env!("CARGO_BIN_EXE_weir")).args(words).output().unwrap())
}

/// Starts `weir nic attach eth0` and waits for its line. `None`, and a line: it cannot be attached here.
fn attach(network: &Network) -> Option<Child> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["nic", "attach", "eth0", "--port", "4000"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = network.at(0, || command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line.is_empty() {
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        let expected = ["built without kernel programs", "need root"];
        assert!(expected.iter().any(|reason| errors.contains(reason)), "{errors}");
        eprintln!("skipped: {errors}");
        return None;
    }
    assert_eq!(line, "attached to eth0 (10.98.0.1:4000); ends with this command\n");
    Some(child)
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn programs_are_attached_as_long_as_the_command_runs() {
    let Ok(network) = Network::new(1).inspect_err(|why| eprintln!("skipped: {why}")) else { return };
    let none = weir(&network, &["nic", "status"]);
    assert_eq!((none.status.code(), text(&none.stdout)), (Some(1), "no kernel programs are attached\n"));
    let has_program = || {
        let show = || Command::new("ip").args(["link", "show", "eth0"]).output().unwrap();
        text(&network.at(0, show).stdout).contains("xdp")
    };
    // A killed one.
    let Some(mut killed) = attach(&network) else { return };
    let status = weir(&network, &["nic", "status"]);
    assert!(status.status.success() && text(&status.stdout).contains("10.98.0.1:4000"), "{status:?}");
    let second = weir(&network, &["nic", "attach", "eth0"]);
    let expected = "weir: the kernel programs are attached to eth0 already; `weir nic status` shows them\n";
    assert_eq!((second.status.code(), text(&second.stderr)), (Some(1), expected));
    assert!(has_program());
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!((has_program(), weir(&network, &["nic", "status"]).status.code()), (false, Some(1)));
    // One that is ended.
    let mut ended = attach(&network).expect("it was possible before");
    let detach = weir(&network, &["nic", "detach", "eth0"]);
    assert_eq!((detach.status.code(), text(&detach.stdout)), (Some(0), "detached from eth0\n"));
    assert_eq!((ended.wait().unwrap().code(), has_program()), (Some(0), false));
    let again = weir(&network, &["nic", "detach", "eth0"]);
    assert_eq!(again.status.code(), Some(1));
    let errors = text(&again.stderr);
    assert!(errors.starts_with("weir: no kernel programs are attached to eth0 ("), "{errors}");
}
