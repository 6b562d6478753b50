//! Stalls: sends that wait for credit, for room in a mailbox or for a link, for how long, and where the credits are. The
//! provider's log and `weir explain` print them. `StallWatch` decides which the log reports, and when again. The line about a
//! sender whose bounce buffers are at their limit is here too.
//!
//! A sender knows what it has spent and what it was granted. Only the receiver knows what became of the rest. Both
//! write what they know into their pages ([`crate::stats`]), and [`stall_line`] combines the two.
//!
//! Worked example: rank 3 has spent all of its 256 credits at rank 0, and no new grant arrives. The page of rank 0 says
//! that it has retrieved 40 slots, that it grants at 86, and that it last polled 1.4 s ago. So 216 slots are not
//! retrieved, and rank 0 computes.

use std::collections::HashMap;
use std::time::Duration;

use crate::stats::EndpointReport;
use weir_proto::{Instant, Peer};

/// Time between two reports of the same stall.
pub(crate) const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Pairs that are reported at a time; the others are counted.
pub(crate) const MAX_REPORTED_STALLS: usize = 4;
/// A receiver whose last poll is older than this is outside the library. Inside, it polls every 200 ms, if an
/// oversubscribed node lets it. Unit: ns.
const NOT_POLLING_NS: u64 = 600_000_000;

/// What a stalled send waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Credit; in schemes without credits room in the mailbox.
    Credit,
    /// The link, which takes no packets for this peer now. Its window is full: the peer has not acknowledged what is under
    /// way.
    Link,
}

impl Awaited {
    /// Its name in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Awaited::Credit => "credit",
            Awaited::Link => "link",
        }
    }
}

/// A stall in a sender's page: a peer for whose credit or link something waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The receiver: see [`weir_link::Address::identity`].
    pub to: u64,
    /// The time when the stall began. Unit: ns since 1970.
    pub since_ns: u64,
    /// Credits left; fewer than the next packet needs.
    pub credits: u64,
    /// The sender's quota at first; `None` with schemes without credits.
    pub quota_slots: Option<u64>,
    /// Slots granted since, modulo 2^32.
    pub granted_total: Option<u64>,
    /// Slots filled, modulo 2^32.
    pub spent_total: Option<u64>,
    /// Messages and packets that wait.
    pub backlog: u64,
    /// Their payload. Unit: bytes.
    pub backlog_bytes: u64,
    /// What they wait for.
    pub awaits: Awaited,
}

/// Credits in a receiver's page that it holds back from one sender: slots retrieved and not granted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldCredits {
    /// The sender.
    pub from: u64,
    /// Slots retrieved and not granted again.
    pub retrieved: u64,
    /// The receiver grants them when there are this many.
    pub threshold: Option<u64>,
    /// Slots granted, modulo 2^32.
    pub granted_total: u64,
    /// The sender's quota.
    pub quota_slots: Option<u64>,
}

/// In a page, a value that is not known.
pub(crate) const UNKNOWN: u64 = u64::MAX;

pub(crate) fn known(word: u64) -> Option<u64> {
    (word != UNKNOWN).then_some(word)
}

impl Stall {
    /// Words of a stall in a page.
    pub(crate) const WORDS: usize = 9;

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
            u64::from(self.awaits == Awaited::Link),
        ]
    }

    pub(crate) fn from_words(words: [u64; Stall::WORDS]) -> Stall {
        let [to, since_ns, credits, quota, granted, spent, backlog, backlog_bytes, link] = words;
        let awaits = if link == 1 { Awaited::Link } else { Awaited::Credit };
        let (quota_slots, granted_total, spent_total) = (known(quota), known(granted), known(spent));
        Stall {
            to,
            since_ns,
            credits,
            quota_slots,
            granted_total,
            spent_total,
            backlog,
            backlog_bytes,
            awaits,
        }
    }
}

impl HeldCredits {
    /// Words of held credits in a page.
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
pub(crate) fn time(ns: u64) -> String {
    if ns >= 1_000_000_000 { format!("{:.1} s", ns as f64 / 1e9) } else { format!("{} ms", ns / 1_000_000) }
}

/// `1 slot`, `2 slots`.
pub fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// One line about a stall: sender, receiver, duration, and the credits of both.
///
/// - `sender`, `receiver`: their names (`rank 3`).
/// - `page`: the receiver's page, if it is known. `sender_identity` selects the sender in it.
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
    let what = match (stall.awaits, stall.granted_total) {
        (Awaited::Link, _) => "room in the window of the link to",
        (Awaited::Credit, Some(_)) => "credit from",
        (Awaited::Credit, None) => "room in the mailbox of",
    };
    let mut line = format!("{sender} has waited {age} for {what} {receiver}");
    line += &format!(": {backlog} ({}) behind", bytes(stall.backlog_bytes));
    if stall.awaits == Awaited::Credit
        && let (Some(granted), Some(spent)) = (stall.granted_total, stall.spent_total)
    {
        let of_quota = stall.quota_slots.map_or(String::new(), |quota| format!("of {quota} "));
        let credits = stall.credits;
        line +=
            &format!(", {credits} {of_quota}credits left, {granted} granted since the start, {spent} spent");
    }
    let Some(page) = page else { return line };
    line += &format!("; {receiver} {}", last_activity(page, now_ns));
    let loan = page.loans.iter().find(|loan| loan.from == sender_identity);
    let known = match loan {
        _ if stall.awaits == Awaited::Link => None, // its credits are not the reason
        Some(loan) => loan.line(stall.granted_total, page.lending.as_ref()),
        None => held_line(sender_identity, stall, page),
    };
    if let Some(known) = known {
        line += &format!(", {known}");
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

/// One line about a sender whose bounce buffers are at their limit.
///
/// - `sender`, `receiver`: their names (`rank 3`). The next message is for `receiver`, which has not taken `copies`.
/// - `waited`: for this long no receiver has taken a bounce buffer.
pub(crate) fn bounce_limit_line(
    sender: &str,
    receiver: &str,
    waited: Duration,
    limit_bytes: u64,
    copies: u32,
) -> String {
    let (age, limit) = (time(waited.as_nanos() as u64), bytes(limit_bytes));
    let until = match copies {
        0 => format!("its sends to {receiver} are slow until other receivers receive"),
        copies => {
            let messages = plural(u64::from(copies), "message");
            format!("its sends are slow until {receiver} receives, which has not taken {messages}")
        }
    };
    format!(
        "{sender} holds copies of messages for receivers without room up to its limit of {limit} (FI_WEIR_BOUNCE_BYTES), \
         and no receiver has taken one for {age}: {until}"
    )
}

/// The last activity of the receiver, from its page.
fn last_activity(page: &EndpointReport, now_ns: u64) -> String {
    let quiet_ns = now_ns.saturating_sub(page.polled_ns);
    if page.closed {
        String::from("has closed its endpoint")
    } else if page.host.is_none() && !std::path::Path::new(&format!("/proc/{}", page.pid)).exists() {
        String::from("has ended without closing its endpoint")
    } else if quiet_ns > NOT_POLLING_NS {
        format!("has not polled for {}", time(quiet_ns))
    } else {
        String::from("polls")
    }
}

/// The part that the receiver holds of the sender's credits, according to its page.
fn held_line(sender: u64, stall: &Stall, page: &EndpointReport) -> Option<String> {
    let held_credits = page.held_credits.iter().find(|held_credits| held_credits.from == sender)?;
    // Grants that the sender has not read, modulo 2^32. Below 0, the sender knows of grants that are newer than the
    // page. Then the page is too old to say anything about this pair.
    let granted =
        stall.granted_total.map_or(0, |total| (held_credits.granted_total as u32).wrapping_sub(total as u32));
    if u64::from(granted) > stall.quota_slots.unwrap_or(0) {
        return None;
    }
    let mut text = format!("has {} retrieved and not granted", plural(held_credits.retrieved, "slot"));
    if let Some(threshold) = held_credits.threshold {
        text += &format!(" (it grants at {threshold})");
    }
    // Retrieved slots are granted or not yet granted. The other spent slots are still in the mailbox.
    let retrieved_total = (held_credits.granted_total as u32).wrapping_add(held_credits.retrieved as u32);
    let unread = stall.spent_total.map(|spent| (spent as u32).wrapping_sub(retrieved_total));
    // The two pages are of different moments, so impossible values are left out. Where quotas change, grants include
    // more than retrieved slots, so the difference has no meaning.
    let quota_slots = stall.quota_slots.unwrap_or(0);
    let unread = unread.filter(|&unread| stall.quota_slots.is_some() && u64::from(unread) <= quota_slots);
    if let Some(unread) = unread {
        text += &format!(" and {} not retrieved", plural(u64::from(unread), "slot"));
    }
    if granted > 0 {
        text += &format!("; {} granted and not yet read", plural(u64::from(granted), "credit"));
    }
    Some(text)
}

pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// Decides which stalls are reported, and when again.
#[derive(Debug)]
pub(crate) struct StallWatch {
    /// Shortest stall that is reported; 0: none is. Unit: ns.
    after_ns: u64,
    known_stalls: HashMap<Peer, KnownStall>,
}

#[derive(Clone, Copy, Debug)]
struct KnownStall {
    /// The time when the stall began; tells stalls of one pair apart.
    since: Instant,
    /// The time when the watch first saw it.
    seen: Instant,
    reported: Option<Instant>,
}

impl StallWatch {
    pub fn new(after_ms: u32) -> StallWatch {
        StallWatch { after_ns: u64::from(after_ms) * 1_000_000, known_stalls: HashMap::new() }
    }

    /// Whether a wait is long enough for a report.
    pub fn is_long(&self, waited: Duration) -> bool {
        self.after_ns > 0 && waited >= Duration::from_nanos(self.after_ns)
    }

    /// Looks at all present stalls and returns those to report. A stall counts from when the watch first saw it.
    /// Before that the program may not have called the library, so credits may have come unread.
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
        awaits: Awaited::Credit,
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
    fn a_stall_at_a_link_names_its_window_and_no_credits() {
        let stall = Stall { awaits: Awaited::Link, credits: 99, ..STALL };
        let known = "rank 3 has waited 1.4 s for room in the window of the link to rank 0: 12 messages (24 KiB) behind";
        assert_eq!(reported(&stall, None), known);
        let away = reported(&stall, Some(&page(10 * S)));
        assert_eq!(away, format!("{known}; rank 0 has not polled for 1.4 s"));
    }

    #[test]
    fn a_stall_line_distinguishes_ended_closed_and_waiting_receivers() {
        let ended = EndpointReport { pid: u64::MAX, held_credits: vec![], ..page(0) };
        assert!(reported(&STALL, Some(&ended)).ends_with("; rank 0 has ended without closing its endpoint"));
        let closed = EndpointReport { closed: true, ..ended };
        assert!(reported(&STALL, Some(&closed)).ends_with("; rank 0 has closed its endpoint"));
        let elsewhere = EndpointReport { closed: false, host: Some("h2".into()), ..closed };
        assert!(
            reported(&STALL, Some(&elsewhere)).ends_with("; rank 0 has not polled for 11.4 s"),
            "another host's process"
        );
        let own = Stall { since_ns: 9 * S, ..STALL };
        let waiting = EndpointReport { stalls: vec![own], stalled_peers: 3, ..page(11 * S + S / 4) };
        assert!(reported(&STALL, Some(&waiting)).ends_with(", and has itself waited 2.4 s for 3 peers"));
    }

    #[test]
    fn a_stall_line_omits_values_from_inconsistent_pages() {
        let mut later = page(11 * S);
        later.held_credits[0].granted_total = 4182;
        let text = reported(&STALL, Some(&later));
        assert!(text.contains("and 130 slots not retrieved; 86 credits granted and not yet read"), "{text}");
        // A page that is older than the sender's view says nothing about the pair.
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
        for stall in [STALL, unknown, Stall { awaits: Awaited::Link, ..STALL }] {
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
        // Another stall of the same pair. Its recorded start is too early and does not count.
        assert_eq!(watch.stalls_to_report(ms(25_000), &[(peer, ms(24))]), []);
        assert_eq!(watch.stalls_to_report(ms(25_900), &[(peer, ms(24))]), []);
        assert_eq!(watch.stalls_to_report(ms(26_000), &[(peer, ms(24))]), [peer]);
        assert_eq!(StallWatch::new(0).stalls_to_report(ms(99_000), &[(peer, ms(1))]), []);
    }
}
