//! The small worlds in which a receiver drops envelopes and asks the holders: programs of two or three ranks.

use weir_proto::PeerFault;

/// A step of a program.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A message with this tag to the receiver.
    Send(u64),
    /// From this sender or anybody, with this tag or any.
    Receive(Option<u32>, Option<u64>),
    /// Claims a message, and receives it at once.
    Claim(Option<u32>, Option<u64>),
    /// Cancels the receive of this number.
    Cancel(u32),
    /// The receiver sends a message to this sender, which nobody receives. It uses up credits.
    Reply(u32),
}

/// A small world.
#[derive(Clone, Debug)]
pub struct World {
    /// Its name.
    pub name: &'static str,
    /// The program of each rank. Rank 0 receives.
    pub programs: Vec<Vec<Step>>,
    /// Envelopes that the receiver keeps.
    pub envelopes: u64,
    /// Payload of each message. Unit: bytes.
    pub bytes: u64,
    /// The credits of each pair.
    pub credits: Credits,
    /// The first sender ends at any time, and the receiver learns of this loss at any time after that.
    pub loss: Option<PeerFault>,
}

/// The credits of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credits {
    /// Static, more than a program needs.
    Plenty,
    /// Static, a single one.
    One,
    /// On demand, one of its own for each sender and one that they share.
    OnDemand,
}

/// The worlds of the suite.
pub fn worlds() -> Vec<World> {
    use Step::{Cancel, Claim, Receive, Reply, Send};
    let mut worlds = Vec::new();
    // Messages of 100 bytes are too long for an eager offer.
    let plenty = [(0, 0), (1, 0), (2, 0), (0, 8), (1, 8), (0, 100), (1, 100)];
    let plenty = plenty.map(|(envelopes, bytes)| (Credits::Plenty, envelopes, bytes));
    let few = [Credits::One, Credits::OnDemand].map(|credits| [(credits, 0, 0), (credits, 1, 8)]);
    let complete = plenty.into_iter().chain(few.into_iter().flatten());
    let died =
        [(Credits::Plenty, 0, 0), (Credits::Plenty, 0, 8), (Credits::Plenty, 1, 100), (Credits::One, 0, 0)];
    let closed = [(Credits::Plenty, 0, 0), (Credits::Plenty, 0, 100)];
    let complete = complete.map(|it| (it, None));
    let died = died.map(|it| (it, Some(PeerFault::Died)));
    let closed = closed.map(|it| (it, Some(PeerFault::Closed)));
    for ((credits, envelopes, bytes), loss) in complete.chain(died).chain(closed) {
        let mut add = |name, programs: Vec<Vec<Step>>| {
            worlds.push(World { name, programs, envelopes, bytes, credits, loss });
        };
        add(
            "from anybody",
            vec![
                vec![Receive(None, Some(2)), Receive(None, None), Receive(None, Some(1))],
                vec![Send(1), Send(2)],
                vec![Send(1)],
            ],
        );
        add(
            "two holders",
            vec![
                vec![
                    Receive(Some(2), Some(1)),
                    Receive(None, Some(2)),
                    Receive(None, None),
                    Receive(Some(1), None),
                ],
                vec![Send(1), Send(2)],
                vec![Send(2), Send(1)],
            ],
        );
        add(
            "two under way",
            vec![
                vec![Receive(Some(1), Some(2)), Receive(Some(1), None), Receive(Some(1), Some(1))],
                vec![Send(1), Send(1), Send(2)],
            ],
        );
        add(
            "one by one",
            vec![
                vec![
                    Receive(None, None),
                    Receive(None, Some(2)),
                    Receive(None, Some(1)),
                    Receive(None, None),
                ],
                vec![Send(1), Send(1), Send(2), Send(1)],
            ],
        );
        add(
            "after a decided one",
            vec![vec![Receive(Some(1), Some(2)), Receive(Some(1), Some(2))], vec![Send(1), Send(2)]],
        );
        add(
            "canceled",
            vec![
                vec![Receive(None, Some(1)), Receive(None, Some(2)), Cancel(0), Receive(None, None)],
                vec![Send(1), Send(2)],
            ],
        );
        add(
            "claimed",
            vec![
                vec![Claim(None, Some(2)), Receive(None, None), Claim(Some(1), None)],
                vec![Send(1), Send(2)],
                vec![Send(2)],
            ],
        );
        add(
            "claim without credits",
            vec![
                vec![Claim(Some(1), None), Reply(1), Receive(Some(1), None), Receive(Some(1), None)],
                vec![Send(1), Send(1), Send(1)],
            ],
        );
    }
    worlds
}
