//! Wrong rules of holding. Tests and searches must detect each of them. Only they can select one.

/// One wrong rule. The letters are those of the lab note on the exact bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HoldMutant {
    /// O3: an arriving message matches a receive that is undecided with its sender.
    UndecidedReceivesMatch,
    /// O3: an offer counts even if its message has arrived after the question.
    LateArrivalsAreTaken,
    /// O4: an offer goes to the oldest receive that accepts the message, whatever was asked.
    OffersServeAnyReceive,
    /// O6: a message is kept although an older one of its sender is dropped.
    KeepsBehindDropped,
    /// A holder forgets what it offers.
    OffersAreForgotten,
    /// A holder forgets what it has sent with an eager offer.
    EagerOffersAreForgotten,
    /// Acknowledgements do not leave before the next request.
    AsksBeforeAcknowledging,
    /// O1: a request leaves while a message of the holder is being received.
    AsksDuringReceives,
    /// A claim ends the held message that has the name now, whatever its number is.
    ClaimsEndLaterMessages,
    /// A message of no bytes whose envelope is kept is acknowledged only when it is received.
    KeptMessagesStayWithSenders,
    /// A message of no bytes is acknowledged although its envelope is dropped.
    DroppedMessagesAreAcknowledged,
    /// Receives and peeks go on waiting for the answer of a holder that is lost.
    LossIsForgotten,
}

impl HoldMutant {
    /// All of them.
    pub const ALL: [HoldMutant; 12] = [
        HoldMutant::UndecidedReceivesMatch,
        HoldMutant::LateArrivalsAreTaken,
        HoldMutant::OffersServeAnyReceive,
        HoldMutant::KeepsBehindDropped,
        HoldMutant::OffersAreForgotten,
        HoldMutant::EagerOffersAreForgotten,
        HoldMutant::AsksBeforeAcknowledging,
        HoldMutant::AsksDuringReceives,
        HoldMutant::ClaimsEndLaterMessages,
        HoldMutant::KeptMessagesStayWithSenders,
        HoldMutant::DroppedMessagesAreAcknowledged,
        HoldMutant::LossIsForgotten,
    ];
}

/// The selected wrong rule. Never one outside tests and proofs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SelectedMutant {
    #[cfg(any(test, feature = "mutants"))]
    mutant: Option<HoldMutant>,
}

impl SelectedMutant {
    /// Selects a wrong rule.
    #[cfg(any(test, feature = "mutants"))]
    pub fn select(&mut self, mutant: HoldMutant) {
        self.mutant = Some(mutant);
    }

    /// Whether this wrong rule is selected.
    #[inline]
    pub fn breaks(self, mutant: HoldMutant) -> bool {
        #[cfg(any(test, feature = "mutants"))]
        return self.mutant == Some(mutant);
        #[cfg(not(any(test, feature = "mutants")))]
        {
            let _ = mutant;
            false
        }
    }
}
