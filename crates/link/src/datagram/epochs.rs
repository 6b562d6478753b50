//! The epochs of the paths of a link ([`Epochs`]): each path has one that no other path has while it exists. A datagram
//! names the epoch of its receiver, so it names the path, whoever has sent it. Nobody has checked that yet.
//!
//! ```text
//! add(0): 1    add(1): 2    path(2): 1    remove(1)    add(2): 3 ... 65535, then 1 again, unless a path has it
//! ```

use std::num::NonZeroU16;

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    /// The path of each epoch.
    paths: Vec<Option<u32>>,
    last: u16,
}

impl Epochs {
    /// An epoch for the path `id`, which differs from those that were given before, as long as there are such. `None`: all
    /// are in use.
    pub fn add(&mut self, id: u32) -> Option<NonZeroU16> {
        for _ in 0..u16::MAX {
            self.last = self.last.checked_add(1).unwrap_or(1);
            let index = usize::from(self.last);
            if self.paths.len() <= index {
                self.paths.resize(index + 1, None);
            }
            if self.paths[index].is_none() {
                self.paths[index] = Some(id);
                return NonZeroU16::new(self.last);
            }
        }
        None
    }

    /// The path with this epoch has ended.
    pub fn remove(&mut self, epoch: NonZeroU16) {
        self.paths[usize::from(epoch.get())] = None;
    }

    /// The path with this epoch.
    pub fn path(&self, epoch: u16) -> Option<u32> {
        self.paths.get(usize::from(epoch)).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_given_again_only_after_all_others_and_never_while_a_path_has_it() {
        let mut epochs = Epochs::default();
        assert_eq!([epochs.path(0), epochs.path(1)], [None; 2]);
        let given: Vec<u16> = (0..3).filter_map(|id| epochs.add(id)).map(NonZeroU16::get).collect();
        assert_eq!((given, epochs.path(2)), (vec![1, 2, 3], Some(1)));
        epochs.remove(NonZeroU16::MIN);
        assert_eq!((epochs.path(1), epochs.path(2)), (None, Some(1)));
        assert!((4..=u16::MAX).all(|epoch| epochs.add(7).map(NonZeroU16::get) == Some(epoch)));
        assert_eq!(epochs.add(8), Some(NonZeroU16::MIN), "the only free one");
        assert_eq!(epochs.add(9), None);
    }
}
