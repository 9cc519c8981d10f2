//! Address handles of a device, by what they stand for: as many as a limit says, and when there
//! are too many, the oldest goes. What was posted with one goes its way without it.

use pollux_verbs::{AddressVector, Ah, Device, Pd, VerbsError};

/// A few address handles.
#[derive(Debug)]
pub struct Handles {
    pd: Pd,
    handles_max: usize,
    /// The oldest first.
    known: Vec<(AddressVector, Ah)>,
}

impl Handles {
    /// None yet, and never more than so many.
    pub const fn new(pd: Pd, handles_max: usize) -> Self {
        Self { pd, handles_max, known: Vec::new() }
    }

    /// A handle of this address, good until others are asked for.
    pub fn of(
        &mut self,
        device: &mut dyn Device,
        address: &AddressVector,
    ) -> Result<Ah, VerbsError> {
        if let Some((_, ah)) = self.known.iter().find(|(known, _)| known == address) {
            return Ok(*ah);
        }
        if self.known.len() == self.handles_max {
            device.destroy_ah(self.known.remove(0).1)?;
        }
        let ah = device.create_ah(self.pd, address)?;
        self.known.push((*address, ah));
        Ok(ah)
    }

    /// Ends all of them.
    pub fn close(self, device: &mut dyn Device) -> Result<(), VerbsError> {
        self.known.into_iter().try_for_each(|(_, ah)| device.destroy_ah(ah))
    }
}
