//! Stalls: who waits for credit, for how long, and who owes it. For the log of the provider and for `weir explain`.
//!
//! A sender knows what it has spent and what it was granted; what became of the rest only the receiver knows. Both leave
//! what they know in their pages ([`crate::stats`]), and [`stall_line`] puts the two together. Worked example: rank 3 has
//! spent all of its 256 credits at rank 0 and is told nothing new; rank 0's page says that it has retrieved 40 slots, that
//! it grants at 86, and that it last worked in the library 1.4 s ago. So 216 slots lie unread, and rank 0 is busy elsewhere.

use std::collections::HashMap;
use std::time::Duration;

use crate::stats::EndpointReport;
use weir_proto::{Instant, Peer};

/// A stall is told again so often.
pub(crate) const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// So many pairs are told of at a time; the others are counted.
pub(crate) const MAX_REPORTED_STALLS: usize = 4;
/// A receiver that has not looked for so long is not working in the library: while it does it looks every 200 ms, when a
/// crowded node lets it. Unit: ns.
const NOT_POLLING_NS: u64 = 600_000_000;

/// A peer at which something waits for credit, as its sender's page tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The receiver: see [`weir_link::Address::identity`].
    pub to: u64,
    /// Since when. Unit: ns since 1970.
    pub since_ns: u64,
    /// Credits left; fewer than the next packet needs.
    pub credits: u64,
    /// Slots that were the sender's from the beginning; `None` with schemes without credits.
    pub quota_slots: Option<u64>,
    /// All that was granted since, modulo 2^32.
    pub granted_total: Option<u64>,
    /// All slots filled, modulo 2^32.
    pub spent_total: Option<u64>,
    /// Messages and packets that wait.
    pub backlog: u64,
    /// Their payload. Unit: bytes.
    pub backlog_bytes: u64,
}

/// What a receiver has taken from one sender and not given back, as its page tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldCredits {
    /// The sender.
    pub from: u64,
    /// Slots retrieved and not granted again.
    pub retrieved: u64,
    /// They are granted when they are so many.
    pub threshold: Option<u64>,
    /// All that was granted, modulo 2^32.
    pub granted_total: u64,
    /// Slots that are meant for the sender.
    pub quota_slots: Option<u64>,
}

/// For what is not known, in a page.
const UNKNOWN: u64 = u64::MAX;

fn known(word: u64) -> Option<u64> {
    (word != UNKNOWN).then_some(word)
}

impl Stall {
    /// Words of one in a page.
    pub(crate) const WORDS: usize = 8;

    pub(crate) fn words(&self) -> [u64; Stall::WORDS] {
        let or_unknown = |value: Option<u64>| value.unwrap_or(UNKNOWN);
        [
            self.to,
            self.since_ns,
            self.credits,
            or_unknown(self.quota_slots),
            or_unknown(self.granted_total),
            or_unknown(self.spent_total),
            self.backlog,
            self.backlog_bytes,
        ]
    }

    pub(crate) fn from_words(words: [u64; Stall::WORDS]) -> Stall {
        let [to, since_ns, credits, quota, granted, spent, backlog, backlog_bytes] = words;
        let (quota_slots, granted_total, spent_total) = (known(quota), known(granted), known(spent));
        Stall { to, since_ns, credits, quota_slots, granted_total, spent_total, backlog, backlog_bytes }
    }
}

impl HeldCredits {
    /// Words of one in a page.
    pub(crate) const WORDS: usize = 5;

    pub(crate) fn words(&self) -> [u64; HeldCredits::WORDS] {
        let or_unknown = |value: Option<u64>| value.unwrap_or(UNKNOWN);
        let (threshold, quota_slots) = (or_unknown(self.threshold), or_unknown(self.quota_slots));
        [self.from, self.retrieved, threshold, self.granted_total, quota_slots]
    }

    pub(crate) fn from_words(words: [u64; HeldCredits::WORDS]) -> HeldCredits {
        let [from, retrieved, threshold, granted_total, quota_slots] = words;
        let (threshold, quota_slots) = (known(threshold), known(quota_slots));
        HeldCredits { from, retrieved, threshold, granted_total, quota_slots }
    }
}

/// `1.4 s`; `23 ms` below a second.
fn time(ns: u64) -> String {
    if ns >= 1_000_000_000 { format!("{:.1} s", ns as f64 / 1e9) } else { format!("{} ms", ns / 1_000_000) }
}

fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Who waits for whom, since when, and what each has: one line.
///
/// - `sender`, `receiver`: their names (`rank 3`).
/// - `page`: what the receiver has left, if it is known. `sender_identity` finds the sender in it.
/// - `now_ns`: unit: ns since 1970.
pub fn stall_line(
    sender: &str,
    sender_identity: u64,
    receiver: &str,
    stall: &Stall,
    page: Option<&EndpointReport>,
    now_ns: u64,
) -> String {
    let age = time(now_ns.saturating_sub(stall.since_ns));
    let backlog = plural(stall.backlog, "message");
    let mut line = match stall.granted_total {
        Some(_) => format!("{sender} has waited {age} for credit from {receiver}"),
        None => format!("{sender} has waited {age} for room in the mailbox of {receiver}"),
    };
    line += &format!(": {backlog} ({}) behind", bytes(stall.backlog_bytes));
    if let (Some(granted), Some(spent)) = (stall.granted_total, stall.spent_total) {
        let of_quota = stall.quota_slots.map_or(String::new(), |quota| format!("of {quota} "));
        let credits = stall.credits;
        line +=
            &format!(", {credits} {of_quota}credits left, {granted} granted since the start, {spent} spent");
    }
    let Some(page) = page else { return line };
    line += &format!("; {receiver} {}", last_activity(page, now_ns));
    if let Some(held_line) = held_line(sender_identity, stall, page) {
        line += &format!(", {held_line}");
    }
    if let Some(own) = page.stalls.first() {
        let others = page.stalled_peers.max(1);
        line += &format!(
            ", and has itself waited {} for {}",
            time(now_ns.saturating_sub(own.since_ns)),
            plural(others, "peer")
        );
    }
    line
}

/// That a sender has no room for copies any more, and whose they are: one line.
///
/// - `sender`, `receiver`: their names (`rank 3`). The next message is for `receiver`, which has not taken `copies`.
/// - `waited`: for so long, none of any receiver's has been taken.
pub(crate) fn bounce_limit_line(
    sender: &str,
    receiver: &str,
    waited: Duration,
    limit_bytes: u64,
    copies: u32,
) -> String {
    let (age, limit) = (time(waited.as_nanos() as u64), bytes(limit_bytes));
    let until = match copies {
        0 => format!("its sends to {receiver} are slow until others receive"),
        copies => {
            let kept = plural(u64::from(copies), "message");
            format!("its sends are slow until {receiver} receives, for which it keeps {kept}")
        }
    };
    format!(
        "{sender} keeps {limit} for receivers without room, its limit (FI_WEIR_RETAIN_BYTES), of which nothing was taken for {age}: {until}"
    )
}

/// What the receiver did last.
fn last_activity(page: &EndpointReport, now_ns: u64) -> String {
    let quiet_ns = now_ns.saturating_sub(page.polled_ns);
    if page.closed {
        String::from("has closed its endpoint")
    } else if !std::path::Path::new(&format!("/proc/{}", page.pid)).exists() {
        String::from("has ended without closing its endpoint")
    } else if quiet_ns > NOT_POLLING_NS {
        format!("has not polled for {}", time(quiet_ns))
    } else {
        String::from("polls")
    }
}

/// What the receiver has of the sender's, as far as its page tells.
fn held_line(sender: u64, stall: &Stall, page: &EndpointReport) -> Option<String> {
    let held_credits = page.held_credits.iter().find(|held_credits| held_credits.from == sender)?;
    // Grants that the sender has not read, modulo 2^32. Below 0, the sender knows of grants that came after the page was
    // written: then what the page says of this pair is over.
    let granted =
        stall.granted_total.map_or(0, |total| (held_credits.granted_total as u32).wrapping_sub(total as u32));
    if u64::from(granted) > stall.quota_slots.unwrap_or(0) {
        return None;
    }
    let mut text = format!("has {} retrieved and not granted", plural(held_credits.retrieved, "slot"));
    if let Some(threshold) = held_credits.threshold {
        text += &format!(" (it grants at {threshold})");
    }
    // What was retrieved is granted or not granted yet; the rest of what was spent lies in the mailbox.
    let retrieved_total = (held_credits.granted_total as u32).wrapping_add(held_credits.retrieved as u32);
    let unread = stall.spent_total.map(|spent| (spent as u32).wrapping_sub(retrieved_total));
    // The two pages are of different moments: nonsense is not told. Nor is anything where quotas change: there grants are not
    // all of retrieved slots.
    let quota_slots = stall.quota_slots.unwrap_or(0);
    let unread = unread.filter(|&unread| stall.quota_slots.is_some() && u64::from(unread) <= quota_slots);
    if let Some(unread) = unread {
        text += &format!(" and {} not retrieved", plural(u64::from(unread), "slot"));
    }
    if granted > 0 {
        text += &format!("; {} of its are on the way or not read", plural(u64::from(granted), "credit"));
    }
    Some(text)
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// Decides which stalls are told, and when again.
#[derive(Debug)]
pub(crate) struct StallWatch {
    /// 0: never. Unit: ns.
    after_ns: u64,
    known_stalls: HashMap<Peer, KnownStall>,
}

#[derive(Clone, Copy, Debug)]
struct KnownStall {
    /// Which stall it was.
    since: Instant,
    /// When the watch saw it first.
    seen: Instant,
    reported: Option<Instant>,
}

impl StallWatch {
    pub fn new(after_ms: u32) -> StallWatch {
        StallWatch { after_ns: u64::from(after_ms) * 1_000_000, known_stalls: HashMap::new() }
    }

    /// Whether a wait is worth a line.
    pub fn is_long(&self, waited: Duration) -> bool {
        self.after_ns > 0 && waited >= Duration::from_nanos(self.after_ns)
    }

    /// Looks at all stalls that there are now, and returns those to tell of. A stall counts from when it was first seen
    /// here: engines read the clock seldom, so its own beginning may be told too early, never what was seen.
    pub fn stalls_to_report(&mut self, now: Instant, stalls: &[(Peer, Instant)]) -> Vec<Peer> {
        let before = std::mem::take(&mut self.known_stalls);
        let mut to_report = Vec::new();
        for &(peer, since) in stalls {
            let known = before.get(&peer).filter(|stall| stall.since == since);
            let mut stall = *known.unwrap_or(&KnownStall { since, seen: now, reported: None });
            let is_long = self.after_ns > 0 && now.since_ns(stall.seen) >= self.after_ns;
            if is_long
                && stall
                    .reported
                    .is_none_or(|reported| Duration::from_nanos(now.since_ns(reported)) >= REPORT_INTERVAL)
            {
                stall.reported = Some(now);
                to_report.push(peer);
            }
            self.known_stalls.insert(peer, stall);
        }
        to_report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::tests::sample_report;

    const S: u64 = 1_000_000_000;
    const STALL: Stall = Stall {
        to: 50,
        since_ns: 10 * S,
        credits: 0,
        quota_slots: Some(256),
        granted_total: Some(4096),
        spent_total: Some(4352),
        backlog: 12,
        backlog_bytes: 24_576,
    };

    fn page(polled_ns: u64) -> EndpointReport {
        let threshold = Some(86);
        let quota_slots = Some(256);
        let held_credits =
            HeldCredits { from: 30, retrieved: 40, threshold, granted_total: 4096, quota_slots };
        EndpointReport { polled_ns, held_credits: vec![held_credits], ..sample_report() }
    }

    fn reported(stall: &Stall, page: Option<&EndpointReport>) -> String {
        stall_line("rank 3", 30, "rank 0", stall, page, 11 * S + S / 5 * 2)
    }

    #[test]
    fn a_stall_line_names_sender_receiver_and_credits() {
        let known = "rank 3 has waited 1.4 s for credit from rank 0: 12 messages (24 KiB) behind, 0 of 256 credits left, \
                     4096 granted since the start, 4352 spent";
        assert_eq!(reported(&STALL, None), known);
        let held_line =
            "has 40 slots retrieved and not granted (it grants at 86) and 216 slots not retrieved";
        assert_eq!(
            reported(&STALL, Some(&page(11 * S + S / 4))),
            format!("{known}; rank 0 polls, {held_line}")
        );
        let away = reported(&STALL, Some(&page(10 * S)));
        assert_eq!(away, format!("{known}; rank 0 has not polled for 1.4 s, {held_line}"));
    }

    #[test]
    fn a_stall_line_distinguishes_ended_closed_and_waiting_receivers() {
        let ended = EndpointReport { pid: u64::MAX, held_credits: vec![], ..page(0) };
        assert!(reported(&STALL, Some(&ended)).ends_with("; rank 0 has ended without closing its endpoint"));
        let closed = EndpointReport { closed: true, ..ended };
        assert!(reported(&STALL, Some(&closed)).ends_with("; rank 0 has closed its endpoint"));
        let own = Stall { since_ns: 9 * S, ..STALL };
        let waiting = EndpointReport { stalls: vec![own], stalled_peers: 3, ..page(11 * S + S / 4) };
        assert!(reported(&STALL, Some(&waiting)).ends_with(", and has itself waited 2.4 s for 3 peers"));
    }

    #[test]
    fn a_stall_line_omits_values_from_inconsistent_pages() {
        let mut later = page(11 * S);
        later.held_credits[0].granted_total = 4182;
        let text = reported(&STALL, Some(&later));
        assert!(
            text.contains("and 130 slots not retrieved; 86 credits of its are on the way or not read"),
            "{text}"
        );
        // A page that is older than what the sender knows says nothing of the pair any more.
        later.held_credits[0].granted_total = 4095;
        assert!(reported(&STALL, Some(&later)).ends_with("; rank 0 polls"));
    }

    #[test]
    fn a_stall_line_omits_unread_slots_if_quotas_change() {
        let stall = Stall { quota_slots: None, spent_total: Some(4136), ..STALL }; // as many as granted and retrieved
        let text = reported(&stall, Some(&page(11 * S + S / 4)));
        assert!(
            text.ends_with("rank 0 polls, has 40 slots retrieved and not granted (it grants at 86)"),
            "{text}"
        );
    }

    #[test]
    fn a_stall_line_reports_a_full_mailbox_without_credits() {
        let stall = Stall { quota_slots: None, granted_total: None, spent_total: None, backlog: 1, ..STALL };
        let expected = "rank 3 has waited 1.4 s for room in the mailbox of rank 0: 1 message (24 KiB) behind";
        assert_eq!(reported(&stall, None), expected);
    }

    #[test]
    fn stalls_and_held_credits_survive_encoding() {
        let unknown = Stall { quota_slots: None, granted_total: None, spent_total: None, ..STALL };
        for stall in [STALL, unknown] {
            assert_eq!(Stall::from_words(stall.words()), stall);
        }
        let held_credits = page(0).held_credits[0];
        for held_credits in [held_credits, HeldCredits { threshold: None, quota_slots: None, ..held_credits }]
        {
            assert_eq!(HeldCredits::from_words(held_credits.words()), held_credits);
        }
    }

    #[test]
    fn a_stall_is_reported_after_the_threshold_then_every_ten_seconds() {
        let mut watch = StallWatch::new(1000);
        let ms = |ms: u64| Instant(ms * 1_000_000);
        let peer = Peer(4);
        let mut reported = Vec::new();
        for now in (0..25_000).step_by(200) {
            if !watch.stalls_to_report(ms(now), &[(peer, ms(0))]).is_empty() {
                reported.push(now);
            }
        }
        assert_eq!(reported, [1000, 11_000, 21_000]);
        // Another stall of the same pair; its own beginning, told too early, does not count.
        assert_eq!(watch.stalls_to_report(ms(25_000), &[(peer, ms(24))]), []);
        assert_eq!(watch.stalls_to_report(ms(25_900), &[(peer, ms(24))]), []);
        assert_eq!(watch.stalls_to_report(ms(26_000), &[(peer, ms(24))]), [peer]);
        assert_eq!(StallWatch::new(0).stalls_to_report(ms(99_000), &[(peer, ms(1))]), []);
    }
}
