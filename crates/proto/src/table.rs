//! Tables of numbered entries, whose memory is released when they empty.
//!
//! [`Table`] stores entries in pages, and [`Row`] stores a few in one array. An optional [`Number`] takes no more
//! memory than the number. Numbers are reused. In a page that is only being filled they ascend, so consecutive
//! operations have consecutive numbers and one range names them. This file does not know what the entries are.

use alloc::vec::Vec;
use core::num::NonZeroU32;

/// A number whose `Option` takes no more memory than the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number(NonZeroU32);

impl Number {
    /// The number `number`, at most `u32::MAX - 1`.
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

/// Approximate size of a page: large enough that the allocator returns it to the kernel. Unit: bytes.
const PAGE_BYTES: usize = 1 << 16;

#[derive(Clone, Debug)]
struct Page<T> {
    /// Grows up to [`Table::PER_PAGE`] as it is used, so that an almost empty table touches little memory.
    entries: Vec<Option<T>>,
    free: Vec<u16>,
}

impl<T> Page<T> {
    const EMPTY: Page<T> = Page { entries: Vec::new(), free: Vec::new() };

    fn used(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Adds a place. The first page grows by need, for the many tables with only a few entries.
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
        core::mem::forget(entry.replace(value)); // a free place: there is nothing to drop
        number
    }

    /// Takes a free place.
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

    /// The entry of this number, if there is one. Numbers may come from the wire.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        let (page, place) = Self::place(number);
        self.pages.get(page)?.entries.get(place)?.as_ref()
    }

    /// As [`Table::get`], for write access.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let (page, place) = Self::place(number);
        self.pages.get_mut(page)?.entries.get_mut(place)?.as_mut()
    }

    /// Removes the entry of this number, if there is one. An empty page is freed unless it is the only one with free
    /// places.
    #[inline(always)]
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let (index, place) = Self::place(number);
        let page = self.pages.get_mut(index)?;
        let value = page.entries.get_mut(place)?.take()?;
        page.free.push(place as u16);
        self.count -= 1;
        let used = page.used();
        if used == Self::PER_PAGE - 1 {
            self.open.push(index as u32);
        }
        // Most often nothing is to be done: the only page with free places is empty again.
        if used == 0 && (place + 1 == Self::PER_PAGE || self.open.len() > 1) {
            self.reset_empty_page(index);
        }
        Some(value)
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

    /// Heap memory that it uses. Unit: bytes, by capacity.
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

/// An empty row with more places than these is freed.
const MAX_SPARE_PLACES: usize = 64;

/// Numbered entries in one array, for few entries at a time: one indirection less than in a [`Table`].
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

    /// The entry of this number, if there is one.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.entries.get(number as usize)?.as_ref()
    }

    /// As [`Row::get`], for write access.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.entries.get_mut(number as usize)?.as_mut()
    }

    /// Removes the entry of this number, if there is one.
    #[inline]
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.entries.get_mut(number as usize)?.take()?;
        self.free.push(number);
        if self.free.len() == self.entries.len() && self.entries.len() > MAX_SPARE_PLACES {
            *self = Row::default();
        }
        Some(value)
    }

    /// Heap memory that it uses. Unit: bytes, by capacity.
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
            assert!(held(&table) <= 2, "{} pages are allocated", held(&table));
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
