//! Numbered entries in pages that go back when they are empty: after a million messages a table is as small as before.
//!
//! Numbers are used again. Within a page that has only been filled they ascend, so that what is begun in a row and
//! ends in a row can be named by a range.

use alloc::vec::Vec;
use core::num::NonZeroU32;

/// A number, in a form in which that there is none takes no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number(NonZeroU32);

impl Number {
    /// The form of `number`, at most `u32::MAX - 1`.
    #[inline]
    pub fn of(number: u32) -> Number {
        Number(NonZeroU32::MIN.saturating_add(number))
    }

    /// The number.
    #[inline]
    pub fn get(self) -> u32 {
        self.0.get() - 1
    }
}

/// About the size of a page: large enough that the allocator gets it from the kernel and gives it back there. Unit: bytes.
const PAGE_BYTES: usize = 1 << 16;

#[derive(Clone, Debug)]
struct Page<T> {
    /// Grows up to [`Table::PER_PAGE`] as it is used, so that an almost empty table touches little.
    entries: Vec<Option<T>>,
    free: Vec<u16>,
}

impl<T> Page<T> {
    const EMPTY: Page<T> = Page { entries: Vec::new(), free: Vec::new() };

    fn used(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// One place more than were ever used. The first page grows as it is needed, for the many tables that never have more
    /// than a few entries.
    fn add_place(&mut self, first_page: bool) -> usize {
        if self.entries.capacity() == 0 && !first_page {
            self.entries.reserve_exact(Table::<T>::PER_PAGE);
        }
        self.entries.push(None);
        self.entries.len() - 1
    }
}

/// The table.
#[derive(Clone, Debug)]
pub struct Table<T> {
    pages: Vec<Page<T>>,
    /// Pages with a free place; the last is filled first.
    open: Vec<u32>,
    count: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { pages: Vec::new(), open: Vec::new(), count: 0 }
    }
}

impl<T> Table<T> {
    const SHIFT: u32 = {
        let bytes = size_of::<Option<T>>();
        assert!(bytes <= PAGE_BYTES / 2);
        let places = PAGE_BYTES / if bytes < 4 { 4 } else { bytes };
        places.ilog2()
    };
    const PER_PAGE: usize = 1 << Self::SHIFT;

    #[inline]
    fn place(number: u32) -> (usize, usize) {
        ((number >> Self::SHIFT) as usize, number as usize & (Self::PER_PAGE - 1))
    }

    /// Entries in use.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Adds an entry and returns its number.
    #[inline(always)]
    pub fn insert(&mut self, value: T) -> u32 {
        let (number, entry) = self.vacant();
        *entry = Some(value);
        number
    }

    /// A place that is free, and counts as used from now on.
    #[inline(always)]
    fn vacant(&mut self) -> (u32, &mut Option<T>) {
        let index = match self.open.last() {
            Some(&index) => index,
            None => self.open_new_page(),
        };
        let page = &mut self.pages[index as usize];
        let place = match page.free.pop() {
            Some(place) => usize::from(place),
            None => page.add_place(index == 0),
        };
        if page.free.is_empty() && page.entries.len() == Self::PER_PAGE {
            self.open.pop();
        }
        self.count += 1;
        (index << Self::SHIFT | place as u32, &mut page.entries[place])
    }

    #[cold]
    fn open_new_page(&mut self) -> u32 {
        let index = self.pages.len() as u32;
        self.open.push(index);
        self.pages.push(Page::EMPTY);
        index
    }

    /// The entry of that number, if there is one: numbers may come from a wire.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        let (page, place) = Self::place(number);
        self.pages.get(page)?.entries.get(place)?.as_ref()
    }

    /// As [`Table::get`], to change it.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let (page, place) = Self::place(number);
        self.pages.get_mut(page)?.entries.get_mut(place)?.as_mut()
    }

    /// Takes out the entry of that number, if there is one. An empty page goes back, unless it is the only one with room.
    #[inline]
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let (index, place) = Self::place(number);
        let value = self.pages.get_mut(index)?.entries.get_mut(place)?.take()?;
        self.vacate(index, place);
        Some(value)
    }

    /// As [`Table::remove`], for an entry that nobody wants. Returns whether there was one.
    #[inline(always)]
    pub fn discard(&mut self, number: u32) -> bool {
        self.discard_with(number, |_| ()).is_some()
    }

    /// As [`Table::discard`], after `act` has seen the entry. Returns what that does.
    #[inline(always)]
    pub fn discard_with<R>(&mut self, number: u32, act: impl FnOnce(&T) -> R) -> Option<R> {
        let (index, place) = Self::place(number);
        let entry = self.pages.get_mut(index)?.entries.get_mut(place)?;
        let result = act(entry.as_ref()?);
        *entry = None;
        self.vacate(index, place);
        Some(result)
    }

    /// A place is empty that was not.
    #[inline(always)]
    fn vacate(&mut self, index: usize, place: usize) {
        let page = &mut self.pages[index];
        page.free.push(place as u16);
        self.count -= 1;
        let used = page.used();
        if used == Self::PER_PAGE - 1 {
            self.open.push(index as u32);
        }
        // Most often nothing is to be done: the only page with room is empty again.
        if used == 0 && (place + 1 == Self::PER_PAGE || self.open.len() > 1) {
            self.reset_empty_page(index);
        }
    }

    #[cold]
    fn reset_empty_page(&mut self, index: usize) {
        let page = &mut self.pages[index];
        if self.open.len() > 1 {
            *page = Page::EMPTY;
        } else {
            page.entries.clear(); // numbers ascend again
            page.free.clear();
        }
    }

    /// What it occupies beside itself. Unit: bytes, by capacity.
    pub fn bytes(&self) -> usize {
        let page = |page: &Page<T>| {
            page.entries.capacity() * size_of::<Option<T>>() + page.free.capacity() * size_of::<u16>()
        };
        self.pages.capacity() * size_of::<Page<T>>()
            + self.open.capacity() * size_of::<u32>()
            + self.pages.iter().map(page).sum::<usize>()
    }

    /// All entries with their numbers, by number.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, &T)> {
        self.pages.iter().enumerate().flat_map(|(index, page)| {
            let number = move |place: usize| (index << Self::SHIFT | place) as u32;
            let entries = page.entries.iter().enumerate();
            entries.filter_map(move |(place, entry)| Some((number(place), entry.as_ref()?)))
        })
    }
}

/// More places than these go back when none is in use.
const MAX_SPARE_PLACES: usize = 64;

/// Numbered entries of which there are few at a time: in one row, a step closer than in a [`Table`].
#[derive(Clone, Debug)]
pub struct Row<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Row<T> {
    fn default() -> Row<T> {
        Row { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Row<T> {
    /// Entries in use.
    #[inline]
    pub fn count(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Adds an entry and returns its number.
    #[inline]
    pub fn insert(&mut self, value: T) -> u32 {
        let Some(number) = self.free.pop() else {
            self.entries.push(Some(value));
            return self.entries.len() as u32 - 1;
        };
        self.entries[number as usize] = Some(value);
        number
    }

    /// The entry of that number, if there is one.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.entries.get(number as usize)?.as_ref()
    }

    /// As [`Row::get`], to change it.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.entries.get_mut(number as usize)?.as_mut()
    }

    /// Takes out the entry of that number, if there is one.
    #[inline]
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.entries.get_mut(number as usize)?.take()?;
        self.free.push(number);
        if self.free.len() == self.entries.len() && self.entries.len() > MAX_SPARE_PLACES {
            *self = Row::default();
        }
        Some(value)
    }

    /// What it occupies beside itself. Unit: bytes, by capacity.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Option<T>>() + self.free.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_entries_are_found_until_removed_and_large_rows_are_freed() {
        let mut row = Row::default();
        for many in [3, 10_000, 50] {
            let numbers: Vec<u32> = (0..many).map(|value| row.insert(value)).collect();
            assert_eq!(row.count(), many as usize);
            for (&number, value) in numbers.iter().zip(0..) {
                assert_eq!(row.get_mut(number).copied(), Some(value));
                assert_eq!(row.get(number), Some(&value));
                assert_eq!((row.remove(number), row.remove(number)), (Some(value), None));
                assert_eq!((row.get(number), row.get(many)), (None, None));
            }
            assert!(row.count() == 0 && row.bytes() <= MAX_SPARE_PLACES * 12, "{} bytes", row.bytes());
        }
    }

    #[test]
    fn table_entries_are_found_until_removed() {
        let mut table = Table::default();
        let numbers: Vec<u32> = (0..100_000u64).map(|value| table.insert(value)).collect();
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1));
        assert_eq!(table.count(), 100_000);
        for (&number, value) in numbers.iter().zip(0..) {
            assert_eq!(table.get(number), Some(&value));
            assert_eq!(table.remove(number), Some(value));
            assert_eq!(table.get(number), None);
            assert_eq!(table.remove(number), None);
        }
        assert_eq!((table.count(), table.iter().count()), (0, 0));
    }

    #[test]
    fn empty_pages_are_freed_in_any_order() {
        let held = |table: &Table<u64>| table.pages.iter().filter(|p| p.entries.capacity() > 0).count();
        for backwards in [false, true] {
            let mut table = Table::default();
            let mut numbers: Vec<u32> = (0..100_000u64).map(|value| table.insert(value)).collect();
            assert!(held(&table) > 10);
            if backwards {
                numbers.reverse();
            }
            for number in numbers {
                table.remove(number);
            }
            assert!(held(&table) <= 2, "{} pages are held", held(&table));
            let number = table.insert(7); // and it works as before
            assert_eq!(table.remove(number), Some(7));
        }
    }

    #[test]
    fn a_table_reuses_numbers() {
        let mut table = Table::default();
        let mut held = alloc::collections::VecDeque::new();
        for value in 0..1_000_000u64 {
            held.push_back((table.insert(value), value));
            if held.len() > 100 {
                let (number, value) = held.pop_front().unwrap();
                assert_eq!(table.remove(number), Some(value));
            }
        }
        assert_eq!(table.pages.len(), 1);
    }
}
