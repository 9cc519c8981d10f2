//! A cache of address handles, by address vector. At the limit, the oldest handle is destroyed;
//! posted requests do not need it any more.

use pollux_verbs::{AddressVector, Ah, Device, Pd, VerbsError};

#[derive(Debug)]
pub struct AddressHandles {
    pd: Pd,
    handles_max: usize,
    /// The oldest first.
    known: Vec<(AddressVector, Ah)>,
}

impl AddressHandles {
    pub const fn new(pd: Pd, handles_max: usize) -> Self {
        Self { pd, handles_max, known: Vec::new() }
    }

    /// The handle of an address, valid until the next call.
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
}
