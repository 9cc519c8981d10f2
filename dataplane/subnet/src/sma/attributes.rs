//! All attributes except PortInfo: node, switch and tables (IBA 14.2.5).

use crate::node::{Forwarding, NodePort, P_KEYS, PKeys, SubnetNode};
use pollux_wire::address::Guid;
use pollux_wire::mad::MadStatus;
use pollux_wire::mad::smp::{
    GuidInfo, LinearForwardingTable, MulticastForwardingTable, MulticastForwardingTableModifier,
    NodeInfo, PKeyTable, PKeyTableModifier, RandomForwardingTable, SlToVlMappingTable,
    SlToVlModifier, SwitchInfo, VlArbitrationModifier, VlArbitrationTable,
};

type Answer<A> = Result<A, MadStatus>;

fn in_range<A>(attribute: Option<A>) -> Answer<A> {
    attribute.ok_or(MadStatus::BAD_FIELD)
}

/// The instance of an attribute at a node. Each attribute has a function that writes the value of a
/// Set, if there is one, and returns the current value.
pub(super) struct Instance<'a> {
    pub(super) node: &'a mut SubnetNode,
    /// The input port of the request.
    pub(super) arrival_port: u8,
    pub(super) modifier: u32,
}

impl Instance<'_> {
    /// The port that has the GUIDs for the input port.
    fn managed_port(&mut self) -> &mut NodePort {
        let managed = self.node.managed_port(self.arrival_port);
        &mut self.node.ports[usize::from(managed)]
    }

    /// The port in an attribute modifier. Nodes other than switches always use the input port.
    fn port(&mut self, number: u16) -> Answer<&mut NodePort> {
        let number = if self.node.is_switch() { number } else { self.arrival_port.into() };
        in_range(self.node.ports.get_mut(usize::from(number)))
    }

    fn forwarding(&mut self) -> Answer<&mut Forwarding> {
        self.node.forwarding.as_deref_mut().ok_or(MadStatus::BAD_METHOD_ATTRIBUTE)
    }

    pub(super) fn node_info(&mut self) -> NodeInfo {
        let (identity, local_port_num) = (self.node.identity, self.arrival_port);
        NodeInfo { port_guid: self.managed_port().guids[0], local_port_num, ..identity }
    }

    pub(super) fn switch_info(&mut self, new: Option<SwitchInfo>) -> Answer<SwitchInfo> {
        let info = &mut self.forwarding()?.info;
        if let Some(new) = new {
            info.linear_fdb_top = new.linear_fdb_top;
            info.default_port = new.default_port;
            info.default_multicast_primary_port = new.default_multicast_primary_port;
            info.default_multicast_not_primary_port = new.default_multicast_not_primary_port;
            info.life_time = new.life_time;
            // Writing 1 clears the bit.
            info.port_state_change &= !new.port_state_change;
        }
        Ok(*info)
    }

    pub(super) fn guid_info(&mut self, new: Option<GuidInfo>) -> Answer<GuidInfo> {
        const LEN: usize = 8;
        let block = self.modifier as usize;
        let guids = self.managed_port().guids.get_mut(block * LEN..);
        // A switch has one GUID, so its block is not full.
        let guids = in_range(guids.filter(|guids| !guids.is_empty()))?;
        if let Some(new) = new {
            // The first GUID is the port's own, and read-only.
            let own = usize::from(block == 0);
            guids.iter_mut().zip(new.guids).skip(own).for_each(|(guid, new)| *guid = new);
        }
        let guids = std::array::from_fn(|i| guids.get(i).copied().unwrap_or(Guid(0)));
        Ok(GuidInfo { guids })
    }

    pub(super) fn p_key_table(&mut self, new: Option<PKeyTable>) -> Answer<PKeyTable> {
        const { assert!(P_KEYS * 2 == PKeyTable::LEN, "the table is one block") };
        let modifier = PKeyTableModifier::parse(&self.modifier.to_be_bytes());
        let port = self.port(modifier.port)?;
        in_range((modifier.block == 0).then_some(()))?;
        if let Some(new) = new {
            port.p_keys = PKeys::new(new.p_keys);
        }
        Ok(PKeyTable { p_keys: *port.p_keys.entries() })
    }

    pub(super) fn sl_to_vl(
        &mut self,
        new: Option<SlToVlMappingTable>,
    ) -> Answer<SlToVlMappingTable> {
        let modifier = SlToVlModifier::parse(&self.modifier.to_be_bytes());
        if !self.node.is_switch() {
            let lanes = &mut self.port(0)?.sl_to_vl;
            *lanes = new.map_or(*lanes, |new| new.lanes);
            return Ok(SlToVlMappingTable { lanes: *lanes });
        }
        let (input, output) = (modifier.input_port, modifier.output_port);
        let is_there = |port: u8| usize::from(port) < self.node.ports.len();
        // SwitchInfo does not offer Sets for all ports at once.
        let is_one = !modifier.all_input_ports && !modifier.all_output_ports;
        in_range((is_one && is_there(input) && is_there(output)).then_some(()))?;
        let vls = self.node.ports[usize::from(output)].info.operational_vls;
        let forwarding = self.forwarding()?;
        if let Some(new) = new {
            forwarding.set_lanes(input, output, new.lanes);
        }
        let lanes = std::array::from_fn(|sl| forwarding.lane(input, output, sl as u8, vls));
        Ok(SlToVlMappingTable { lanes })
    }

    pub(super) fn vl_arbitration(
        &mut self,
        new: Option<VlArbitrationTable>,
    ) -> Answer<VlArbitrationTable> {
        let modifier = VlArbitrationModifier::parse(&self.modifier.to_be_bytes());
        let part = usize::from(modifier.part.0.wrapping_sub(1));
        let port = self.port(modifier.port)?;
        in_range((part < 4).then_some(()))?;
        if let Some(new) = new {
            port.arbitration.get_or_insert_default()[part] = new;
        }
        Ok(port.arbitration.as_ref().map_or_else(VlArbitrationTable::default, |parts| parts[part]))
    }

    pub(super) fn linear_table(
        &mut self,
        new: Option<LinearForwardingTable>,
    ) -> Answer<LinearForwardingTable> {
        let (block, forwarding) = (self.modifier, self.forwarding()?);
        let is_done = new.is_none_or(|new| forwarding.set_linear_block(block, &new));
        in_range(forwarding.linear_block(block).filter(|_| is_done))
    }

    pub(super) fn random_table(
        &mut self,
        new: Option<RandomForwardingTable>,
    ) -> Answer<RandomForwardingTable> {
        let (block, forwarding) = (self.modifier, self.forwarding()?);
        let is_done = new.is_none_or(|new| forwarding.set_random_block(block, &new));
        in_range(forwarding.random_block(block).filter(|_| is_done))
    }

    pub(super) fn multicast_table(
        &mut self,
        new: Option<MulticastForwardingTable>,
    ) -> Answer<MulticastForwardingTable> {
        let block = MulticastForwardingTableModifier::parse(&self.modifier.to_be_bytes());
        let forwarding = self.forwarding()?;
        let is_done = new.is_none_or(|new| forwarding.set_multicast_block(block, &new));
        in_range(forwarding.multicast_block(block).filter(|_| is_done))
    }

    /// The LED of a port, which is the first bit of the attribute (IBA 14.2.5.15).
    pub(super) fn led(&mut self, new: Option<&[u8; 64]>) -> Answer<[u8; 64]> {
        let port = self.port(self.modifier as u16)?;
        port.led = new.map_or(port.led, |new| new[0] & 0x80 != 0);
        let mut data = [0; 64];
        data[0] = u8::from(port.led) << 7;
        Ok(data)
    }

    /// The vendor-specific link speeds of a port: supported (byte 7), enabled (byte 11) and active
    /// (byte 15). The port supports none, so a Set must not enable any.
    pub(super) fn mellanox_extended_port_info(
        &mut self,
        new: Option<&[u8; 64]>,
    ) -> Answer<[u8; 64]> {
        const ENABLED: usize = 11;
        self.port(self.modifier as u16)?;
        in_range(new.is_none_or(|new| new[ENABLED] == 0).then_some([0; 64]))
    }
}
