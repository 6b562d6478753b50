//! `weir nic`: attaches the kernel programs to an interface, and shows and ends them.

use clap::{Args, Subcommand};
use weir_nic::control::{self, Answer, Command};
use weir_nic::format::{COUNTERS, DEFAULT_PORT};
use weir_nic::programs::AttachError;
use weir_nic::service::Service;
use weir_output::{Failure, table};

/// The commands of `weir nic`.
#[derive(Subcommand, Debug)]
pub enum NicCommand {
    /// Attach the programs to an interface, and serve processes of this host until the command ends.
    #[command(after_help = "\
Needs root, a driver that runs XDP programs itself, and Linux 5.9 or newer. The kernel detaches the programs when the command \
ends, in whatever way. The programs take the UDP port from all other programs on this interface. Other frames pass.

Exit status: 0 after `weir nic detach`, 1 if the programs cannot be attached, 128 and the signal after a signal.")]
    Attach(AttachArguments),
    /// Show what the programs on interfaces of this host have done.
    #[command(after_help = "\
Exit status: 0 if programs are attached, 1 if none are.")]
    Status,
    /// End the programs on an interface, and `weir nic attach` with them.
    #[command(after_help = "\
Needs root. Exit status: 0 if the programs have ended, 1 if none were attached.")]
    Detach(DetachArguments),
}

/// Options of `weir nic attach`.
#[derive(Args, Debug)]
pub struct AttachArguments {
    /// The network interface.
    #[arg(value_name = "INTERFACE")]
    interface: String,
    /// UDP port of the programs. All hosts of a job use the same one.
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
}

/// Options of `weir nic detach`.
#[derive(Args, Debug)]
pub struct DetachArguments {
    /// The network interface.
    #[arg(value_name = "INTERFACE")]
    interface: String,
}

/// Performs one of the commands. Returns the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(command: &NicCommand) -> Result<u8, Failure> {
    match command {
        NicCommand::Attach(arguments) => attach(arguments),
        NicCommand::Status => status(),
        NicCommand::Detach(DetachArguments { interface }) => {
            control::ask(interface, Command::Detach).map_err(|error| Failure::Host(error.to_string()))?;
            println!("detached from {interface}");
            Ok(0)
        }
    }
}

fn attach(arguments: &AttachArguments) -> Result<u8, Failure> {
    let AttachArguments { interface, port } = arguments;
    let refused = |error: AttachError| Failure::Host(error.to_string());
    let service = Service::attach(interface, *port).map_err(refused)?;
    println!("attached to {interface} ({}:{port}); ends with this command", service.address());
    service.run().map_err(Failure::system("the service of the interface"))?;
    Ok(0)
}

fn status() -> Result<u8, Failure> {
    let interfaces = control::interfaces().map_err(Failure::system("the list of sockets"))?;
    let mut answers = Vec::new();
    for interface in interfaces {
        match control::ask(&interface, Command::Status) {
            Ok(answer) => answers.push((interface, answer)),
            Err(error) => eprintln!("weir: {error}"),
        }
    }
    if answers.is_empty() {
        println!("no kernel programs are attached");
        return Ok(1);
    }
    println!("{}", render(&answers));
    Ok(0)
}

/// A column for each interface.
fn render(answers: &[(String, Answer)]) -> String {
    let mut table = table::plain();
    let header = answers.iter().map(|(interface, _)| table::right(interface));
    table.set_header(std::iter::once(comfy_table::Cell::new("")).chain(header));
    let mut row = |name: &str, value: &dyn Fn(&Answer) -> String| {
        let values = answers.iter().map(|(_, answer)| table::right(value(answer)));
        table.add_row(std::iter::once(comfy_table::Cell::new(name)).chain(values));
    };
    row("address", &|answer| format!("{}:{}", answer.address, answer.port));
    row("jobs", &|answer| answer.domains.to_string());
    row("processes", &|answer| answer.members.to_string());
    for (at, name) in COUNTERS.iter().enumerate() {
        row(&name.replace('_', " "), &|answer| answer.counters[at].to_string());
    }
    table::text(&table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use weir_nic::control::Verdict;

    #[test]
    fn status_has_a_column_for_each_interface_and_a_line_for_each_counter() {
        let answer = |port| Answer {
            verdict: Verdict::Done,
            port,
            address: Ipv4Addr::new(10, 0, 0, 1),
            domains: 2,
            members: 3,
            slots: None,
            counters: std::array::from_fn(|at| 100 + at as u64),
        };
        let text = render(&[(String::from("eth0"), answer(7)), (String::from("eth1"), answer(8))]);
        let line = |name: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
            line.split_whitespace().skip(name.split(' ').count()).collect::<Vec<_>>()
        };
        assert_eq!(line("address"), ["10.0.0.1:7", "10.0.0.1:8"]);
        assert_eq!((line("jobs"), line("processes")), (vec!["2", "2"], vec!["3", "3"]));
        assert_eq!((line("other version"), line("forged")), (vec!["107", "107"], vec!["109", "109"]));
    }
}
