//! Which wrong rule a machine follows, so that its tests and searches can show that they detect it. Outside of them there is
//! none, and the question costs nothing.

/// The wrong rule of a machine, if one is selected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Broken<M> {
    #[cfg(any(test, feature = "mutants"))]
    pub mutant: Option<M>,
    #[cfg(not(any(test, feature = "mutants")))]
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
        #[cfg(any(test, feature = "mutants"))]
        return self.mutant == Some(mutant);
        #[cfg(not(any(test, feature = "mutants")))]
        {
            let _ = mutant;
            false
        }
    }
}
