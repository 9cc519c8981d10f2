//! The cases: each is run with either side as the requester.

mod datagrams;
mod faults;
mod messages;
mod refusals;

use crate::peer::{Family, Outcome, Trial};

pub struct Case {
    pub name: String,
    pub family: Family,
    pub run: Box<dyn Fn(&mut Trial<'_>) -> Outcome>,
}

impl Case {
    fn new(name: impl Into<String>, run: impl Fn(&mut Trial<'_>) -> Outcome + 'static) -> Self {
        Self { name: name.into(), family: Family::V4, run: Box::new(run) }
    }

    /// The same over the other family.
    fn over_v6(self) -> Self {
        Self { name: format!("{}, IPv6", self.name), family: Family::V6, run: self.run }
    }
}

pub fn all() -> Vec<Case> {
    let mut cases = messages::cases();
    cases.extend(refusals::cases());
    cases.extend(datagrams::cases());
    cases.extend(faults::cases());
    cases
}
