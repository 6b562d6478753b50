//! A table of the objects of one kind in a domain, such as its endpoints, by number.

use std::ops::{Index, IndexMut};

/// Objects of one kind, by number. Numbers are reused.
pub struct Table<T>(Vec<Option<T>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table(Vec::new())
    }
}

impl<T> Table<T> {
    /// Adds an object and returns its number.
    pub fn insert(&mut self, value: T) -> usize {
        let free = self.0.iter().position(Option::is_none);
        let index = free.unwrap_or(self.0.len());
        match free {
            Some(index) => self.0[index] = Some(value),
            None => self.0.push(Some(value)),
        }
        index
    }

    /// Removes an object.
    pub fn remove(&mut self, index: usize) -> Option<T> {
        self.0.get_mut(index)?.take()
    }

    /// An object that may have been removed.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.0.get_mut(index)?.as_mut()
    }

    /// Two different open objects.
    pub fn both_mut(&mut self, indices: [usize; 2]) -> Option<[&mut T; 2]> {
        let [Some(one), Some(other)] = self.0.get_disjoint_mut(indices).ok()? else { return None };
        Some([one, other])
    }

    /// All objects.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flatten()
    }
}

impl<T> Index<usize> for Table<T> {
    type Output = T;
    #[inline]
    fn index(&self, index: usize) -> &T {
        self.0[index].as_ref().expect("an open object is in the table of its domain")
    }
}

impl<T> IndexMut<usize> for Table<T> {
    #[inline(always)]
    fn index_mut(&mut self, index: usize) -> &mut T {
        self.0[index].as_mut().expect("an open object is in the table of its domain")
    }
}
