//! A list of accounts, each at most once, in the order in which they were added. Each operation takes constant time.

use alloc::vec::Vec;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
    listed: bool,
}

/// Memory for each account.
#[cfg(test)]
pub(super) const LINK_BYTES: usize = size_of::<Link>();

/// The list.
#[derive(Clone, Debug)]
pub(super) struct AccountList {
    /// By account.
    links: Vec<Link>,
    first: u32,
    last: u32,
    len: usize,
}

/// The list without accounts.
impl Default for AccountList {
    fn default() -> AccountList {
        AccountList { links: Vec::new(), first: NONE, last: NONE, len: 0 }
    }
}

impl AccountList {
    /// Makes room for an account, so that no other operation allocates.
    pub fn make_room(&mut self, index: u32) {
        let accounts = self.links.len().max(index as usize + 1);
        self.links.resize(accounts, Link { before: NONE, after: NONE, listed: false });
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn contains(&self, index: u32) -> bool {
        self.links[index as usize].listed
    }

    /// Adds an account at the end, unless it is in the list.
    pub fn push_back(&mut self, index: u32) {
        if self.contains(index) {
            return;
        }
        self.links[index as usize] = Link { before: self.last, after: NONE, listed: true };
        *self.after(self.last) = index;
        self.last = index;
        self.len += 1;
    }

    /// The first account.
    pub fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Removes the first account.
    pub fn pop_front(&mut self) -> Option<u32> {
        let first = self.first()?;
        self.remove(first);
        Some(first)
    }

    /// Removes an account, if it is in the list.
    pub fn remove(&mut self, index: u32) {
        let Link { before, after, listed } = self.links[index as usize];
        if !listed {
            return;
        }
        self.links[index as usize].listed = false;
        *self.after(before) = after;
        match after {
            NONE => self.last = before,
            after => self.links[after as usize].before = before,
        }
        self.len -= 1;
    }

    /// The field that names the account after `index`.
    fn after(&mut self, index: u32) -> &mut u32 {
        match index {
            NONE => &mut self.first,
            index => &mut self.links[index as usize].after,
        }
    }

    /// The accounts in their order.
    #[cfg(any(test, feature = "explore"))]
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        core::iter::successors(Some(self.first), |&index| Some(self.links[index as usize].after))
            .take(self.len)
    }

    /// Memory of the list. Unit: bytes, by capacity.
    pub fn bytes(&self) -> usize {
        self.links.capacity() * size_of::<Link>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;

    #[test]
    fn accounts_keep_the_order_in_which_they_were_added() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut accounts = AccountList::default();
        let mut list: VecDeque<u32> = VecDeque::new();
        (0..20).for_each(|index| accounts.make_room(index));
        for _ in 0..10_000 {
            let index = random.u32(0..20);
            match random.u32(0..3) {
                0 => {
                    accounts.push_back(index);
                    if !list.contains(&index) {
                        list.push_back(index);
                    }
                }
                1 => {
                    accounts.remove(index);
                    list.retain(|&other| other != index);
                }
                _ => assert_eq!(accounts.pop_front(), list.pop_front()),
            }
            assert!(accounts.iter().eq(list.iter().copied()), "{accounts:?}, {list:?}");
            assert_eq!((accounts.len(), accounts.contains(index)), (list.len(), list.contains(&index)));
        }
    }
}
