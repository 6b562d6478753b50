//! Which wrong rule a machine follows, so that its tests can show that they detect it. Outside tests there is none, and the
//! question costs nothing.

/// The wrong rule of a machine, if one is selected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Broken<M> {
    #[cfg(test)]
    pub mutant: Option<M>,
    #[cfg(not(test))]
    mutant: core::marker::PhantomData<M>,
}

impl<M> Default for Broken<M> {
    fn default() -> Broken<M> {
        Broken { mutant: Default::default() }
    }
}

impl<M: PartialEq> Broken<M> {
    /// Whether this wrong rule is selected.
    #[inline]
    pub fn has(&self, mutant: M) -> bool {
        #[cfg(test)]
        return self.mutant == Some(mutant);
        #[cfg(not(test))]
        {
            let _ = mutant;
            false
        }
    }
}
