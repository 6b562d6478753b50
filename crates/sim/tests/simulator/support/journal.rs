//! Journals: what each rank sends, receives and records, noted independently of its driver.

use std::cell::RefCell;
use std::rc::Rc;

use weir_proto::Scheme;
use weir_sim::program::{self, Call, Handle, Program, Rank, Shared, Status};
use weir_sim::workload::Workload;

/// The journal of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Journal {
    /// Receiver, tag and bytes of each send, in the order of the calls.
    pub sends: Vec<(u32, u64, u64)>,
    /// Result of each receive, in the order in which they were posted.
    pub receives: Vec<Option<Status>>,
    /// Names of recorded measures.
    pub records: Vec<&'static str>,
}

impl Journal {
    /// Adds a receive. Returns the index of its result.
    pub fn begin_receive(&mut self) -> usize {
        self.receives.push(None);
        self.receives.len() - 1
    }

    pub fn end_receive(&mut self, place: usize, status: Status) {
        assert_eq!(self.receives[place].replace(status), None, "a receive ends once");
    }
}

/// Runs a workload in the simulator. Returns the journal of each rank.
pub fn simulated(workload: &Workload, ranks: u32, scheme: Scheme) -> Vec<Journal> {
    let journals: Vec<_> = (0..ranks).map(|_| Rc::new(RefCell::new(Journal::default()))).collect();
    super::run_programs(ranks, scheme, |rank| -> Program {
        let journal = Rc::clone(&journals[rank.rank() as usize]);
        Box::pin(observed(rank, workload.clone(), journal))
    });
    journals.iter().map(|journal| journal.take()).collect()
}

/// Runs the program of a workload, passes its calls on to `rank` and notes them.
async fn observed(rank: Rank, workload: Workload, journal: Rc<RefCell<Journal>>) {
    let shared = Shared::new(rank.rank(), rank.size());
    let mut program = workload.program(Rank::new(&shared));
    rank.use_wait_any();
    // By outer handle: the inner handle, and the index of a receive's result.
    let mut open = Vec::new();
    let mut under_way = 0;
    let mut now_ps = 0; // clocks differ anyway; this one runs
    let mut returned = false;
    while !returned || under_way > 0 {
        returned = returned || program::run(&mut program);
        let mut at_once = false;
        while let Some(call) = shared.next_call(false) {
            match call {
                Call::Send { handle, to, tag, bytes } => {
                    journal.borrow_mut().sends.push((to, tag, bytes));
                    begin(&mut open, rank.isend(to, tag, bytes), handle, None);
                    under_way += 1;
                }
                Call::Receive { handle, from, tag, bytes } => {
                    let receive = journal.borrow_mut().begin_receive();
                    begin(&mut open, rank.irecv(from, tag, bytes), handle, Some(receive));
                    under_way += 1;
                }
                Call::Compute { ps, handle } => {
                    rank.compute(ps);
                    if let Some(handle) = handle {
                        shared.complete(handle, Status::default());
                        at_once = true;
                    }
                }
                Call::Clock { handle } | Call::Credits { handle, .. } => {
                    now_ps += 1000;
                    shared.complete(handle, Status { bytes: now_ps, ..Status::default() });
                    at_once = true;
                }
                Call::Offload { .. } => panic!("{call:?}: these tests have no offloaded machines"),
                Call::Record { name, .. } => journal.borrow_mut().records.push(name),
            }
        }
        if at_once || (returned && under_way == 0) {
            continue;
        }
        assert!(under_way > 0, "rank {} waits for nothing", rank.rank());
        let (outer, status) = rank.wait_any().await;
        let (inner, receive) = open[outer.0 as usize].take().expect("each ends once");
        if let Some(receive) = receive {
            journal.borrow_mut().end_receive(receive, status);
        }
        shared.complete(inner, status);
        under_way -= 1;
    }
}

/// The program's handle of an operation, and the index of its result.
type Open = Option<(Handle, Option<usize>)>;

fn begin(open: &mut Vec<Open>, outer: Handle, inner: Handle, receive: Option<usize>) {
    let index = outer.0 as usize;
    open.resize(open.len().max(index + 1), None);
    assert_eq!(open[index].replace((inner, receive)), None);
}
