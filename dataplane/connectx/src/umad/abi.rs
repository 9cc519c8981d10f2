//! The kernel's interface of `/dev/infiniband/umadN` (Linux `rdma/ib_user_mad.h`).

use rustix::io::Errno;
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The header of each MAD that a program reads or writes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Header {
    /// The number of the agent within the open file.
    pub id: u32,
    /// 0, or an error number.
    pub status: u32,
    pub timeout_ms: u32,
    pub retries: u32,
    /// The length of the message, this header included.
    pub length: u32,
    pub qpn: U32,
    pub qkey: U32,
    pub lid: U16,
    pub sl: u8,
    pub path_bits: u8,
    pub grh_present: u8,
    pub gid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub gid: [u8; 16],
    pub flow_label: U32,
    /// This field and the next one are absent until the program enables them (`ENABLE_PKEY`).
    pub p_key_index: u16,
    pub reserved: [u8; 6],
}

pub(super) const OLD_HEADER_BYTES: usize = 56;
const _: () = assert!(size_of::<Header>() == 64);

/// `IB_USER_MAD_REGISTER_AGENT`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Register {
    pub id: u32,
    pub methods: [[u8; 8]; 2],
    pub qpn: u8,
    pub class: u8,
    pub version: u8,
    pub oui: [u8; 3],
    pub rmpp_version: u8,
    pub padding: u8,
}

/// `IB_USER_MAD_REGISTER_AGENT2`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Register2 {
    pub id: u32,
    pub qpn: u32,
    pub class: u8,
    pub version: u8,
    pub reserved: u16,
    pub flags: u32,
    pub methods: [u64; 2],
    pub oui: u32,
    pub rmpp_version: u8,
    pub padding: [u8; 3],
}

const _: () = assert!(size_of::<Register>() == 28 && size_of::<Register2>() == 40);

/// The flag of an agent that does RMPP itself.
pub(super) const USER_RMPP: u32 = 1;

/// The requests of `ioctl`. A request contains the size of its argument, which is thereby checked.
pub(super) mod request {
    const fn both_ways(number: u64, bytes: usize) -> u64 {
        3 << 30 | (bytes as u64) << 16 | 0x1b << 8 | number
    }
    pub const REGISTER: u64 = both_ways(1, size_of::<super::Register>());
    /// The kernel's `_IOW`: the argument is an input.
    pub const UNREGISTER: u64 = 1 << 30 | 4 << 16 | 0x1b << 8 | 2;
    pub const ENABLE_PKEY: u64 = 0x1b << 8 | 3;
    pub const REGISTER2: u64 = both_ways(4, size_of::<super::Register2>());
}

/// The registration of an agent by a program, checked as the kernel checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AgentRequest {
    pub class: u8,
    pub version: u8,
    pub oui: [u8; 3],
    pub methods: u128,
    /// Whether this library does RMPP for the agent.
    pub has_rmpp: bool,
}

impl AgentRequest {
    pub(super) fn of(register: &Register) -> Result<Self, Errno> {
        let [low, high] = register.methods.map(u64::from_ne_bytes);
        Self {
            class: register.class,
            version: register.version,
            oui: register.oui,
            methods: u128::from(low) | u128::from(high) << 64,
            has_rmpp: register.rmpp_version != 0,
        }
        .checked(register.qpn.into())
    }

    /// The caller must refuse unknown flags.
    pub(super) fn of_second(register: &Register2) -> Result<Self, Errno> {
        let [low, high] = register.methods;
        let [0, oui @ ..] = register.oui.to_be_bytes() else { return Err(Errno::INVAL) };
        Self {
            class: register.class,
            version: register.version,
            oui,
            methods: u128::from(low) | u128::from(high) << 64,
            has_rmpp: register.rmpp_version != 0 && register.flags & USER_RMPP == 0,
        }
        .checked(register.qpn)
    }

    fn checked(self, qpn: u32) -> Result<Self, Errno> {
        const CLASSES: u8 = 80;
        const VERSIONS: u8 = 8;
        const LID_ROUTED: u8 = 0x01;
        const DIRECTED_ROUTE: u8 = 0x81;
        const VENDOR: std::ops::RangeInclusive<u8> = 0x30..=0x4f;
        let is_smi = matches!(self.class, LID_ROUTED | DIRECTED_ROUTE);
        let is_valid = self.class == 0
            || self.version < VERSIONS
                && (self.class < CLASSES || is_smi)
                && is_smi == (qpn == 0)
                && (!VENDOR.contains(&self.class) || self.oui != [0; 3]);
        (qpn <= 1 && is_valid).then_some(self).ok_or(Errno::INVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_numbers_of_the_kernel() {
        assert_eq!(request::REGISTER, 0xc01c_1b01);
        assert_eq!(request::UNREGISTER, 0x4004_1b02);
        assert_eq!(request::ENABLE_PKEY, 0x1b03);
        assert_eq!(request::REGISTER2, 0xc028_1b04);
    }

    #[test]
    fn agents_of_the_wrong_queue_pair_or_without_a_vendor_are_refused() {
        let (version, methods, has_rmpp) = (1, 2, false);
        let of = |class, oui, qpn| {
            AgentRequest { class, version, oui, methods, has_rmpp }.checked(qpn).is_ok()
        };
        assert!(of(0x81, [0; 3], 0) && of(3, [0; 3], 1) && of(0x32, [0, 0x14, 5], 1));
        assert!(of(0, [0; 3], 0) && of(0, [0; 3], 1));
        assert!(!of(0x81, [0; 3], 1) && !of(3, [0; 3], 0) && !of(0x32, [0; 3], 1));
        assert!(!of(0, [0; 3], 2) && !of(0x60, [0; 3], 1));
    }
}
