//! The moves of a search: what can happen next in a state ([`Move`]), and which moves are possible.

use weir_proto::{Peer, Timer};

use super::{Setup, State};

/// One step of the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// `to` retrieves the packet at the head of the lane from `from`.
    Retrieve {
        /// Its sender.
        from: u32,
        /// Its receiver.
        to: u32,
    },
    /// The link tells `from` how many slots at `to` are free.
    FindRoom {
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
    },
    /// The program of pair number `pair` posts one more message.
    Post {
        /// Index in [`Setup::pairs`].
        pair: usize,
        /// Its length. Unit: bytes.
        bytes: u64,
    },
    /// The program of pair number `pair` fetches and changes the word of its peer ([`Setup::pair`]).
    Fetch {
        /// Its number.
        pair: usize,
    },
    /// The program of `who` joins the group.
    Join {
        /// The endpoint.
        who: u32,
    },
    /// The program of `who` starts the next operation of its group.
    Start {
        /// The endpoint.
        who: u32,
    },
    /// The absent sender is at a monitoring point of endpoint `at`.
    Steal {
        /// The endpoint.
        at: u32,
    },
    /// `from` gets `Connected` for its lane at `to`.
    Notify {
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
    },
    /// `from` gets a request to detach from the mailbox of `to`.
    Detach {
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
    },
    /// The link from `from` to `to` becomes busy: it takes so many more packets.
    Congest {
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
        /// 0 or 1.
        packets: u32,
    },
    /// The link has refused a packet of `from` and is ready again. It stays busy after the next packet if `once`.
    Ready {
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
        /// It takes one packet only.
        once: bool,
    },
    /// `who` sends the credits for `to` that its driver has deferred.
    SendDeferred {
        /// The receiver of messages.
        who: u32,
        /// Their sender.
        to: u32,
    },
    /// A timer of `who` expires.
    Expire {
        /// The endpoint.
        who: u32,
        /// Its timer.
        timer: Timer,
    },
    /// `who` has been idle for a while.
    Idle {
        /// The endpoint.
        who: u32,
    },
    /// `who` learns that `of` has dropped it, after `who` has read all packets of `of`.
    LearnLoss {
        /// The endpoint.
        who: u32,
        /// The endpoint that has dropped it.
        of: u32,
    },
    /// This endpoint crashes, and all others get `Lost`.
    Crash {
        /// The endpoint.
        who: u32,
    },
}

impl Move {
    /// Whether the move happens without programs and without requests of the environment.
    pub fn is_automatic(&self) -> bool {
        match self {
            Move::Retrieve { .. }
            | Move::FindRoom { .. }
            | Move::Notify { .. }
            | Move::SendDeferred { .. }
            | Move::Expire { .. }
            | Move::Idle { .. }
            | Move::LearnLoss { .. } => true,
            Move::Ready { once, .. } => !once,
            Move::Congest { .. }
            | Move::Post { .. }
            | Move::Fetch { .. }
            | Move::Join { .. }
            | Move::Start { .. }
            | Move::Steal { .. }
            | Move::Detach { .. }
            | Move::Crash { .. } => false,
        }
    }
}

impl Setup {
    /// All possible moves, in a fixed order.
    pub fn moves(&self, state: &State, moves: &mut Vec<Move>) {
        self.automatic_moves(state, moves);
        for pair in 0..self.pairs.len() {
            moves.extend(self.posts(state, pair));
        }
        let fetching = (self.pairs.len()..).take(self.offload.fetching.len());
        moves.extend(
            fetching.filter(|&pair| self.fetches_left(state, pair) > 0).map(|pair| Move::Fetch { pair }),
        );
        for &who in &self.offload.members {
            if self.may_start(state, who) {
                moves.push(Move::Start { who });
            } else if !state.machines.ranks[who as usize].joined {
                moves.push(Move::Join { who });
            }
        }
        if self.stealing && self.max_steals.is_none_or(|most| state.steals < most) {
            // A sender that attaches again may have taken the account of the absent sender.
            let expected = |&at: &u32| state.endpoints[at as usize].pool().expected_slots() > 0;
            moves.extend((0..self.processes).filter(expected).map(|at| Move::Steal { at }));
        }
        if self.max_detaches.is_none_or(|most| state.detaches < most) {
            for &(from, to) in &self.detaching {
                let lane = self.lane(from, to);
                if state.leases[lane].is_active
                    && state.unnotified & 1 << lane == 0
                    && !self.is_lost(state, from, to)
                {
                    moves.push(Move::Detach { from, to });
                }
            }
        }
        for (from, to) in [(0, 1), (1, 0)].into_iter().filter(|_| self.busy_links) {
            let bit = 1 << self.lane(from, to);
            if state.congested & bit == 0 {
                moves.extend([0, 1].map(|packets| Move::Congest { from, to, packets }));
            }
            if state.refused & bit != 0 {
                moves.push(Move::Ready { from, to, once: true });
            }
        }
        moves.extend(self.may_crash.filter(|&who| !self.dead(state, who)).map(|who| Move::Crash { who }));
    }

    /// All possible automatic moves ([`Move::is_automatic`]), in a fixed order.
    pub fn automatic_moves(&self, state: &State, moves: &mut Vec<Move>) {
        moves.clear();
        let mut lanes = self.lanes_with_moves(state);
        while lanes != 0 {
            let lane = lanes.trailing_zeros();
            lanes &= lanes - 1;
            let (from, to) = (lane / self.processes, lane % self.processes);
            if state.busy & 1 << lane != 0 {
                moves.push(Move::Retrieve { from, to });
            } else if self.has_unknown_loss(state, to, from) {
                moves.push(Move::LearnLoss { who: to, of: from });
            }
            if state.asking & 1 << lane != 0
                && (self.answers_at_once() || self.filled_last(state, from, to).0 < self.lane_slots(to))
            {
                moves.push(Move::FindRoom { from, to });
            }
            if state.unnotified & 1 << lane != 0 {
                moves.push(Move::Notify { from, to });
            }
            if state.refused & 1 << lane != 0 {
                moves.push(Move::Ready { from, to, once: false });
            }
            if state.deferred & 1 << lane != 0 {
                moves.push(Move::SendDeferred { who: from, to });
            }
        }
        moves.extend(state.timers.iter().map(|&(who, timer)| Move::Expire { who, timer }));
        moves.extend(self.waiting_for_idle(state).map(|who| Move::Idle { who }));
    }

    fn lanes_with_moves(&self, state: &State) -> u64 {
        let State { busy, asking, unnotified, dropped, refused, deferred, .. } = state;
        busy | asking | unnotified | dropped | refused | deferred
    }

    /// Whether the driver of `who` has deferred credits for a sender.
    pub(super) fn defers(&self, state: &State, who: u32) -> bool {
        (0..self.processes).any(|to| state.deferred & 1 << self.lane(who, to) != 0)
    }

    /// Endpoints that do something when they are idle.
    pub(super) fn waiting_for_idle(&self, state: &State) -> impl Iterator<Item = u32> {
        (0..self.processes)
            .filter(|&who| !self.dead(state, who) && state.endpoints[who as usize].waits_for_idle())
    }

    /// Whether `of` has dropped `who`, and `who` has not learned it.
    fn has_unknown_loss(&self, state: &State, who: u32, of: u32) -> bool {
        state.dropped & 1 << self.lane(of, who) != 0 && state.dropped & 1 << self.lane(who, of) == 0
    }

    pub(super) fn any_unknown_loss(&self, state: &State) -> bool {
        let pairs = || (0..self.processes).flat_map(|who| self.neighbours(who).map(move |of| (who, of)));
        state.dropped != 0 && pairs().any(|(who, of)| self.has_unknown_loss(state, who, of))
    }

    /// The possible posts of a pair: none while a message of it waits. A pair whose receiver is lost counts as sending: see
    /// `advance`.
    pub fn posts(&self, state: &State, pair: usize) -> impl Iterator<Item = Move> {
        let (from, to) = self.pairs[pair];
        let waits = state.endpoints[from as usize].sender_totals(Peer(to)).messages > 0;
        let lengths = if waits { 0 } else { self.message_bytes.len() };
        let lengths = if self.is_lost(state, from, to) { 1 } else { lengths };
        self.message_bytes[..lengths].iter().map(move |&bytes| Move::Post { pair, bytes })
    }
}
