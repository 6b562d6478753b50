//! The hosts of a job, from a file: one host a line, with the ranks that it takes ([`Hosts`]).
//!
//! ```text
//! # comment            4 ranks:                 5 ranks:
//! node1:3              node1 3, node2 1         node1 3, node2 2
//! node2 slots=2
//!
//! node1                without numbers, ranks are shared evenly: 4 ranks are node1 2, node2 2
//! node2
//! ```
//! A host that several lines name has the sum of their numbers; there, a line without a number counts as one rank.

use std::path::{Path, PathBuf};
use weir_output::Failure;

/// The longest name of a host. Source: RFC 1035, section 2.3.4. Unit: bytes.
const LONGEST_NAME: usize = 255;
/// Most ranks of a line, and most hosts: those of a job.
const MOST_RANKS: u32 = 4096;
/// The form of a line, for errors.
const FORM: &str = "HOST, HOST:RANKS or HOST slots=RANKS";

/// A host of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name or address.
    pub name: String,
    /// The most ranks that it takes. `None`: its even share.
    pub slots: Option<u32>,
}

/// The hosts of a file, each once, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    file: PathBuf,
    hosts: Vec<Host>,
}

/// A host and the number of its ranks.
pub type Share<'a> = (&'a str, u32);

impl Hosts {
    /// Reads the file, and asks the system for the address of every host.
    ///
    /// # Errors
    /// [`Failure::Usage`], with the file, the line, its value and what is allowed.
    pub fn read(file: &Path) -> Result<Hosts, Failure> {
        let text = std::fs::read_to_string(file).map_err(|error| {
            Failure::Usage(format!(
                "--hosts {}: {error}; allowed: a text file with one host a line, as {FORM}",
                file.display()
            ))
        })?;
        let hosts = Hosts::parse(file, &text).map_err(Failure::Usage)?;
        for host in &hosts.hosts {
            use std::net::ToSocketAddrs;
            (host.name.as_str(), 0).to_socket_addrs().map_err(|error| {
                Failure::Usage(format!(
                    "--hosts {}: the host {} has no address: {error}; allowed: names that this host can resolve, \
                     and addresses",
                    file.display(),
                    host.name
                ))
            })?;
        }
        Ok(hosts)
    }

    /// The hosts in `text`, which `file` holds. Does not resolve names.
    ///
    /// # Errors
    /// A line for the user.
    pub fn parse(file: &Path, text: &str) -> Result<Hosts, String> {
        let mut hosts: Vec<Host> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong =
                |what: String| format!("--hosts {} line {number}: {what}; allowed: {FORM}", file.display());
            let Host { name, slots } = parse_line(line).map_err(wrong)?;
            match hosts.iter_mut().find(|host| host.name == name) {
                Some(host) => {
                    let sum = host.slots.unwrap_or(1).saturating_add(slots.unwrap_or(1));
                    host.slots = Some(sum.min(MOST_RANKS));
                }
                None => hosts.push(Host { name, slots }),
            }
            if hosts.len() > MOST_RANKS as usize {
                return Err(wrong(format!("too many hosts; at most {MOST_RANKS}")));
            }
        }
        if hosts.is_empty() {
            return Err(format!(
                "--hosts {}: the file names no host; allowed: one host a line, as {FORM}",
                file.display()
            ));
        }
        Ok(Hosts { file: file.to_owned(), hosts })
    }

    /// The names, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.hosts.iter().map(|host| host.name.as_str())
    }

    /// The least number of ranks that a host takes, of those with a number; `None`: no host has one.
    pub fn least_slots(&self) -> Option<u32> {
        self.hosts.iter().filter_map(|host| host.slots).min()
    }

    /// The hosts that get ranks, and how many each. Hosts with a number are filled in the order of the file, as far as the
    /// others do not share evenly: every host without a number has the same share, rounded up, or one less.
    ///
    /// # Errors
    /// [`Failure::Usage`]: the hosts have fewer slots than `ranks`.
    pub fn share(&self, ranks: u32) -> Result<Vec<Share<'_>>, Failure> {
        let given: u32 = self.hosts.iter().filter_map(|host| host.slots).fold(0, u32::saturating_add);
        let open = self.hosts.iter().filter(|host| host.slots.is_none()).count() as u32;
        if open == 0 && ranks > given {
            return Err(Failure::Usage(format!(
                "-n {ranks}: --hosts {} has {} with {given} slots in all; allowed: 1 to {given}, or more slots \
                 in the file",
                self.file.display(),
                if self.hosts.len() == 1 {
                    String::from("1 host")
                } else {
                    format!("{} hosts", self.hosts.len())
                }
            )));
        }
        let for_given = ranks.min(given);
        let (mut for_given, mut for_open, mut open) = (for_given, ranks - for_given, open);
        let mut shares = Vec::new();
        for host in &self.hosts {
            let ranks = match host.slots {
                Some(slots) => {
                    let taken = slots.min(for_given);
                    for_given -= taken;
                    taken
                }
                None => {
                    let taken = for_open.div_ceil(open);
                    (for_open, open) = (for_open - taken, open - 1);
                    taken
                }
            };
            if ranks > 0 {
                shares.push((host.name.as_str(), ranks));
            }
        }
        Ok(shares)
    }
}

fn parse_line(line: &str) -> Result<Host, String> {
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    let (name, mut slots) = match first.split_once(':') {
        Some((name, count)) => (name, Some(ranks_of(count)?)),
        None => (first, None),
    };
    for word in words {
        match word.strip_prefix("slots=") {
            Some(count) if slots.is_none() => slots = Some(ranks_of(count)?),
            Some(_) => return Err(format!("`{line}` has two numbers of ranks")),
            None => return Err(format!("`{word}` is not known")),
        }
    }
    // A name becomes an argument of other programs, so it must not look like an option or a pattern.
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(allowed)
        && name.len() <= LONGEST_NAME;
    if !is_name {
        return Err(format!("`{name}` is no host name: letters, digits, `-`, `_` and `.`"));
    }
    Ok(Host { name: name.to_owned(), slots })
}

fn ranks_of(count: &str) -> Result<u32, String> {
    count
        .parse()
        .ok()
        .filter(|count| (1..=MOST_RANKS).contains(count))
        .ok_or_else(|| format!("`{count}` is no number of ranks from 1 to {MOST_RANKS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Hosts, String> {
        Hosts::parse(Path::new("f"), text)
    }

    fn shares(text: &str, ranks: u32) -> Vec<(String, u32)> {
        let hosts = parse(text).expect("hosts");
        let shares = hosts.share(ranks).expect("enough slots");
        shares.into_iter().map(|(name, ranks)| (name.to_owned(), ranks)).collect()
    }

    fn named(shares: &[(&str, u32)]) -> Vec<(String, u32)> {
        shares.iter().map(|&(name, ranks)| (name.to_owned(), ranks)).collect()
    }

    #[test]
    fn hosts_are_filled_in_the_order_of_the_file() {
        let text = "# two hosts\nnode1:3\n\n node2 slots=2 # the second\n";
        assert_eq!(shares(text, 4), named(&[("node1", 3), ("node2", 1)]));
        assert_eq!(shares(text, 5), named(&[("node1", 3), ("node2", 2)]));
        assert_eq!(shares(text, 2), named(&[("node1", 2)]));
    }

    #[test]
    fn hosts_without_a_number_share_evenly() {
        assert_eq!(shares("a\nb\nc", 7), named(&[("a", 3), ("b", 2), ("c", 2)]));
        assert_eq!(shares("a\nb\nc", 1), named(&[("a", 1)]));
        assert_eq!(shares("a:1\nb\nc", 4), named(&[("a", 1), ("b", 2), ("c", 1)]));
        let least = |text| parse(text).unwrap().least_slots();
        assert_eq!([least("a:3\nb\nc:2"), least("a\nb")], [Some(2), None]);
    }

    #[test]
    fn a_host_that_is_repeated_has_the_sum() {
        assert_eq!(shares("a\nb\na\nb\na", 5), named(&[("a", 3), ("b", 2)]));
        assert_eq!(shares("10.0.0.1:2\n10.0.0.1:3", 5), named(&[("10.0.0.1", 5)]));
    }

    #[test]
    fn more_ranks_than_slots_are_refused() {
        let error = parse("a:2\nb:2").unwrap().share(5).unwrap_err();
        assert_eq!(error.status(), 2);
        assert_eq!(
            error.to_string(),
            "-n 5: --hosts f has 2 hosts with 4 slots in all; allowed: 1 to 4, or more slots in the file"
        );
    }

    #[test]
    fn wrong_lines_are_named() {
        let refused = |text| parse(text).unwrap_err();
        assert_eq!(
            refused("a\nb:x"),
            format!("--hosts f line 2: `x` is no number of ranks from 1 to 4096; allowed: {FORM}")
        );
        for (text, word) in [
            ("a:0", "`0`"),
            ("a:5000", "`5000`"),
            ("a:1 slots=2", "two numbers"),
            ("a max_slots=4", "`max_slots=4`"),
            ("-oProxyCommand=x", "`-oProxyCommand=x` is no host name"),
            ("user@a", "`user@a` is no host name"),
            ("a;b", "`a;b`"),
            (":3", "`` is no host name"),
        ] {
            assert!(refused(text).contains(word), "{text}: {}", refused(text));
        }
        for empty in ["", "\n# only a comment\n  \n"] {
            assert!(refused(empty).starts_with("--hosts f: the file names no host"));
        }
    }

    #[test]
    fn files_and_hosts_that_do_not_exist_are_named() {
        let missing = Hosts::read(Path::new("/no/such/hosts")).unwrap_err();
        assert_eq!(missing.status(), 2);
        assert!(missing.to_string().starts_with("--hosts /no/such/hosts: No such file"), "{missing}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "127.0.0.1\nno-such-host.invalid\n").unwrap();
        let unknown = Hosts::read(file.path()).unwrap_err().to_string();
        assert!(unknown.contains("the host no-such-host.invalid has no address"), "{unknown}");
    }
}
