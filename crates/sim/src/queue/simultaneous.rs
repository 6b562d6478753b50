//! Events of one time: how they are put into the order of their sequences. [`Sorter`] sorts those of one round at once;
//! [`Late`] makes a heap of those that were pushed behind their place. The wheel (`queue.rs`) says which events have one time.

use std::cmp::Ordering;

use super::sequence::{NUMBER_BITS, Sequence};

/// Most events that are sorted by counting.
const MAX_COUNTED: usize = 1 << 15;

const WORD_BITS: usize = u64::BITS as usize;

/// An event that waits. Its round is that of all events beside it: 0, unless it is for the current time.
#[derive(Clone, Copy)]
#[repr(Rust, packed(4))]
pub(super) struct Entry<E> {
    /// The lower half of its time. The rest follows from its bucket.
    pub at_low: u32,
    pub source_and_number: u64,
    pub event: E,
}

impl<E: Copy> Entry<E> {
    #[inline]
    fn source(&self) -> usize {
        (self.source_and_number >> NUMBER_BITS) as usize
    }
}

/// Sorts events of equal time and round by the bits of their sources. Its memory is used again.
///
/// Most sources have one event at a time. Comparing events would cost more: worlds in which all ranks do the same have
/// hundreds at a time.
#[derive(Default)]
pub(super) struct Sorter {
    words: Vec<Word>,
    /// One bit for each word of `words` that has sources.
    groups: Vec<u64>,
    /// For an event of a source with several: the next one of that source. The last one names itself.
    next: Vec<u32>,
}

/// The events of [`WORD_BITS`] sources.
#[derive(Clone, Copy)]
struct Word {
    /// One bit for each source that has events, and for each that has several. 0 between two sorts.
    sources: u64,
    repeated: u64,
    /// By source: the index of its first event. Valid if the source has events.
    first: [u32; WORD_BITS],
}

impl Word {
    const EMPTY: Word = Word { sources: 0, repeated: 0, first: [0; WORD_BITS] };
}

impl Sorter {
    /// Of so few events, each is inserted at its place.
    const FEW: usize = 12;

    /// Sorts `entries`, with the help of `sorted`, which is empty before and afterwards.
    #[inline]
    pub fn sort<E: Copy>(&mut self, entries: &mut Vec<Entry<E>>, sorted: &mut Vec<Entry<E>>) {
        if entries.len() > Self::FEW {
            self.sort_many(entries, sorted);
        } else {
            insert_each(entries);
        }
    }

    fn sort_many<E: Copy>(&mut self, entries: &mut Vec<Entry<E>>, sorted: &mut Vec<Entry<E>>) {
        if entries.is_sorted_by_key(|entry| entry.source_and_number) {
            return;
        }
        if entries.len() > MAX_COUNTED {
            return entries.sort_unstable_by_key(|entry| entry.source_and_number);
        }
        // Backwards, so that the events of a source are linked forwards.
        for (index, entry) in entries.iter().enumerate().rev() {
            self.note(entry.source(), index);
        }
        sorted.clear();
        sorted.reserve(entries.len());
        self.take_in_order(entries, sorted);
        std::mem::swap(entries, sorted);
    }

    /// The source has an event with this index, before those that were noted.
    #[inline(always)]
    fn note(&mut self, source: usize, index: usize) {
        let (place, bit) = (source / WORD_BITS, 1 << (source % WORD_BITS));
        if place >= self.words.len() {
            self.grow(place);
        }
        let word = &mut self.words[place];
        let first = std::mem::replace(&mut word.first[source % WORD_BITS], index as u32);
        if word.sources == 0 {
            self.groups[place / WORD_BITS] |= 1 << (place % WORD_BITS);
        }
        if word.sources & bit != 0 {
            let is_second = word.repeated & bit == 0;
            word.repeated |= bit;
            self.link(index, first, is_second);
        }
        self.words[place].sources |= bit;
    }

    /// Links the event `index` to `behind`, the first one of its source so far.
    fn link(&mut self, index: usize, behind: u32, is_second: bool) {
        if self.next.len() <= behind as usize {
            self.next.resize((behind as usize + 1).next_power_of_two(), 0);
        }
        if is_second {
            self.next[behind as usize] = behind;
        }
        self.next[index] = behind;
    }

    /// Makes room for the sources of word `place`.
    #[cold]
    fn grow(&mut self, place: usize) {
        self.words.resize((place + 1).next_power_of_two(), Word::EMPTY);
        self.groups.resize(self.words.len().div_ceil(WORD_BITS), 0);
    }

    /// Puts the noted events into `sorted`, and forgets them.
    fn take_in_order<E: Copy>(&mut self, entries: &[Entry<E>], sorted: &mut Vec<Entry<E>>) {
        let mut in_order = true;
        for (group, places) in self.groups.iter_mut().enumerate() {
            while *places != 0 {
                let word = &mut self.words[group * WORD_BITS + places.trailing_zeros() as usize];
                *places &= *places - 1;
                let mut sources = std::mem::take(&mut word.sources);
                let repeated = std::mem::take(&mut word.repeated);
                while sources != 0 {
                    let source = sources.trailing_zeros() as usize;
                    let mut index = word.first[source];
                    let mut entry = entries[index as usize];
                    sorted.push(entry);
                    if repeated >> source & 1 != 0 {
                        while self.next[index as usize] != index {
                            index = self.next[index as usize];
                            let before = std::mem::replace(&mut entry, entries[index as usize]);
                            in_order &= before.source_and_number <= entry.source_and_number;
                            sorted.push(entry);
                        }
                    }
                    sources &= sources - 1;
                }
            }
        }
        if !in_order {
            insert_each(sorted); // events of a source that were not pushed in order
        }
    }
}

/// Sorts events that are few, or nearly sorted.
#[inline]
fn insert_each<E: Copy>(entries: &mut [Entry<E>]) {
    for end in 1..entries.len() {
        let entry = entries[end];
        if entry.source_and_number >= entries[end - 1].source_and_number {
            continue;
        }
        let mut place = end;
        while place > 0 && entry.source_and_number < entries[place - 1].source_and_number {
            entries[place] = entries[place - 1];
            place -= 1;
        }
        entries[place] = entry;
    }
}

/// An event that was pushed at the current time. The first one is the greatest, as a heap needs it.
pub(super) struct Late<E> {
    pub round: u32,
    pub entry: Entry<E>,
}

impl<E> Late<E> {
    /// Its place in the order.
    pub fn sequence(&self) -> Sequence {
        Sequence { round: self.round, source_and_number: self.entry.source_and_number }
    }
}

impl<E> PartialEq for Late<E> {
    fn eq(&self, other: &Late<E>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Late<E> {}

impl<E> PartialOrd for Late<E> {
    fn partial_cmp(&self, other: &Late<E>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Late<E> {
    fn cmp(&self, other: &Late<E>) -> Ordering {
        other.sequence().cmp(&self.sequence())
    }
}
