//! A member of the measured group: a process of its own, which does the same calls as the others. Member 0 times them.
//!
//! All members get the same arguments, so they agree on the order of measurements. How often an operation is repeated is
//! decided by member 0, which broadcasts it in the group. It prints one line for each measurement.

use super::case::Case;
use super::flat_counter::{self, FlatCounter};
use crate::members::SharedArguments;
use clap::Args;
use std::ffi::OsString;
use std::time::{Duration, Instant};
use weir_link::SchemeName;
use weir_link::shm::node_group::{GroupFailure, NodeGroup, NodeGroups, Operation};
use weir_link::shm::node_segment::{Area, JobKey, NodeSegment};
use weir_link::shm::{ShmLink, ShmOptions};
use weir_output::Failure;

/// The helper's name on the command line.
pub const HELPER: &str = "node-group-member";
/// Repetitions that are checked and not counted.
const WARM_UP: u64 = 50;
/// Bound on the repetitions of a measurement.
const MAX_REPETITIONS: u64 = 1 << 20;
/// Bound on the start of all members.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Arguments of a member.
#[derive(Args, Debug)]
pub struct MemberArguments {
    /// Only so many of [`Case::ALL`].
    #[arg(long)]
    cases: usize,
    #[command(flatten)]
    shared: SharedArguments,
}

/// The words on the command line of a member.
pub fn words(shared: &SharedArguments, cases: usize) -> Vec<OsString> {
    let mut words = shared.words(HELPER);
    words.extend(["--cases".into(), cases.to_string().into()]);
    words
}

/// Runs a member. Returns the exit status.
///
/// # Errors
/// [`Failure`]: another member has ended, or the node has no memory.
pub fn run(MemberArguments { cases, shared: arguments }: &MemberArguments) -> Result<u8, Failure> {
    let mut member = Member::join(arguments)?;
    for _ in 0..arguments.rounds {
        for case in Case::ALL.into_iter().take(*cases) {
            let time_ns = member.measure(case, arguments.time())?;
            if member.rank == 0 {
                println!("{time_ns}");
            }
        }
    }
    member.leave()?;
    Ok(0)
}

/// Dropped in this order: a member leaves the group before its mailbox closes.
struct Member {
    group: NodeGroup,
    flat: FlatCounter,
    data: Vec<u8>,
    result: Vec<u8>,
    rank: u32,
    ranks: u32,
    _node: NodeSegment,
    _link: ShmLink,
}

fn lost(failure: GroupFailure) -> Failure {
    Failure::Measurement(format!("a group of processes: {failure}"))
}

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::Measurement(error.to_string())
}

impl Member {
    fn join(arguments: &SharedArguments) -> Result<Member, Failure> {
        let options = ShmOptions {
            dir: arguments.directory.clone(),
            in_memory: false,
            reserved_lanes: 0,
            ranks: 0,
            needed_bytes: 0,
            is_private: false,
            // The group needs the mailbox only to show that its owner runs.
            quota_data_slots: 16,
            quota_rest_lanes: 0,
            start_slots: 0,
            credit_slots: 2,
            max_lanes: 4,
            cross_memory: false,
            full_fences: false,
            cooperative_copy: false,
            conditional: false,
            refused_limit: Duration::from_secs(10),
            scheme: SchemeName::new("static"),
        };
        let link = ShmLink::open(&options).map_err(refused)?;
        let node = NodeSegment::join(&link, JobKey::new(&"weir bench node-group")).map_err(refused)?;
        let began = Instant::now();
        let late = || Failure::Measurement(String::from("the other processes of the group have not started"));
        let members = loop {
            let mut members: Vec<u64> = node.members().iter().map(|(_, member)| member.endpoint).collect();
            members.sort_unstable();
            if members.len() == arguments.ranks as usize {
                break members;
            }
            if began.elapsed() > START_TIMEOUT {
                return Err(late());
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let handle = node.handle();
        let rank = members.iter().position(|&member| member == handle.endpoint()).ok_or_else(late)? as u32;
        let words = handle.part(Area::TokenPools, 0, flat_counter::BYTES).map_err(refused)?;
        let groups = NodeGroups::open(handle).map_err(refused)?;
        let group = loop {
            match groups.join(1, &members, rank).map_err(refused)? {
                Some(group) => break group,
                None if began.elapsed() > START_TIMEOUT => return Err(late()),
                None => std::thread::yield_now(),
            }
        };
        let ranks = arguments.ranks;
        let longest = |bytes: fn(Operation, u32, u32) -> usize| {
            let all = Case::ALL.into_iter().filter_map(|case| case.operation(0, ranks));
            all.flat_map(|operation| (0..ranks).map(move |rank| bytes(operation, rank, ranks)))
                .max()
                .unwrap_or(0)
        };
        Ok(Member {
            group,
            flat: FlatCounter::new(words, ranks),
            data: vec![0; longest(Operation::data_bytes)],
            result: vec![0; longest(Operation::result_bytes)],
            rank,
            ranks,
            _node: node,
            _link: link,
        })
    }

    /// Mean time of an operation, as member 0 sees it. Unit: nanoseconds.
    fn measure(&mut self, case: Case, time: Duration) -> Result<f64, Failure> {
        let warm_up = self.time(case, WARM_UP, true)?;
        let wanted = time.as_nanos() as f64 / (warm_up.as_nanos() as f64 / WARM_UP as f64);
        let count = self.agree_on((wanted as u64).clamp(WARM_UP, MAX_REPETITIONS))?;
        Ok(self.time(case, count, false)?.as_nanos() as f64 / count as f64)
    }

    /// Time of so many repetitions, from when all have begun until all have ended.
    fn time(&mut self, case: Case, count: u64, is_checked: bool) -> Result<Duration, Failure> {
        self.barrier()?;
        let began = Instant::now();
        for repetition in 0..count {
            match case.operation(repetition, self.ranks) {
                None if self.flat.barrier() => {}
                None => {
                    return Err(Failure::Measurement(String::from("a process has not come to the counter")));
                }
                Some(operation) => self.perform(operation, repetition, is_checked)?,
            }
        }
        self.barrier()?;
        Ok(began.elapsed())
    }

    fn perform(&mut self, operation: Operation, repetition: u64, is_checked: bool) -> Result<(), Failure> {
        let data = &mut self.data[..operation.data_bytes(self.rank, self.ranks)];
        let result = &mut self.result[..operation.result_bytes(self.rank, self.ranks)];
        if is_checked {
            Case::fill(self.rank, repetition, data);
        }
        self.group.perform(operation, data, result, std::thread::yield_now).map_err(lost)?;
        if is_checked && !Case::is_right(operation, self.rank, self.ranks, repetition, result) {
            return Err(Failure::Measurement(format!("{operation:?} has a wrong result")));
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), Failure> {
        self.group.perform(Operation::Barrier, &[], &mut [], std::thread::yield_now).map_err(lost)
    }

    /// Tells all members the number of member 0.
    fn agree_on(&mut self, number: u64) -> Result<u64, Failure> {
        let operation = Operation::Broadcast { root: 0, bytes: 8 };
        let mut bytes = number.to_ne_bytes();
        if self.rank == 0 {
            self.group.perform(operation, &bytes, &mut [], std::thread::yield_now).map_err(lost)?;
        } else {
            self.group.perform(operation, &[], &mut bytes, std::thread::yield_now).map_err(lost)?;
        }
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Leaves when nobody waits for this member any more.
    fn leave(mut self) -> Result<(), Failure> {
        self.barrier()
    }
}
