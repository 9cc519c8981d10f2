//! Queries the subnet with management datagrams, from a port of an adapter.
//!
//! `mads mlx5_0:1 [HOP...]` queries the port itself, the node at the end of a directed route (a
//! list of output ports: `1 3` leaves the first switch through its port 3), and an unassigned LID.
//! It also queries the record of its own node, if there is subnet administration. The program needs
//! access to `/dev/infiniband`.

use pollux_ibverbs::management::{Agent, MadPeer, ManagementPort, Registration, UmadRetryPolicy};
use pollux_ibverbs::umad::UmadPort;
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::mad::sa::{NodeRecord, NodeRecordMask, SaMad};
use pollux_wire::mad::smp::{CapabilityMask, DirectedSmp, LidSmp, NodeInfo, PortInfo};
use pollux_wire::mad::{Attribute, MAD_LEN, MadHeader, MadStatus, Method, MgmtClass};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

const RETRY_POLICY: UmadRetryPolicy =
    UmadRetryPolicy { timeout: Duration::from_millis(200), retries: 2 };

/// A timeout longer than all attempts together.
const ALL: Duration = Duration::from_secs(10);

/// The last unicast LID, which a subnet manager assigns only after all others.
const NOBODY: Lid = Lid(0xbfff);

fn main() -> ExitCode {
    match ask() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mads: {error}");
            ExitCode::FAILURE
        }
    }
}

fn ask() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, hops)) = arguments.split_first() else {
        return Err("usage: mads DEVICE[:PORT] [HOP...]".into());
    };
    let hops = hops.iter().map(|hop| hop.parse()).collect::<Result<Vec<u8>, _>>()?;
    let mut port = UmadPort::open(name)?;
    let directed = port.register(&Registration::new(MgmtClass::SUBN_DIRECTED_ROUTE, &[]))?;
    let info: NodeInfo = by_route(&mut port, directed, &[])?;
    println!("here: {} {}", info.node_type, info.node_guid);
    if !hops.is_empty() {
        let info: NodeInfo = by_route(&mut port, directed, &hops)?;
        println!("there: {} {}", info.node_type, info.node_guid);
    }
    let is_manager = |port: &mut UmadPort| -> Result<bool, Box<dyn Error>> {
        let info: PortInfo = by_route(port, directed, &[])?;
        Ok(info.capability_mask.contains(CapabilityMask::SM))
    };
    let before = is_manager(&mut port)?;
    let manager = port.be_subnet_manager()?;
    let meanwhile = is_manager(&mut port)?;
    drop(manager);
    println!("subnet manager here: {before}, {meanwhile}, {}", is_manager(&mut port)?);
    port.unregister(directed)?;

    let lids = port.register(&Registration::new(MgmtClass::SUBN_LID_ROUTED, &[]))?;
    let header = MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::GET, 1, NodeInfo::ID);
    let request = LidSmp { header, ..LidSmp::default() }.emit();
    let nobody = MadPeer { lid: NOBODY, ..MadPeer::default() };
    let answer = exchange(&mut port, lids, &nobody, &request)?;
    println!("at {NOBODY}: {}", if answer.is_some() { "somebody" } else { "nobody" });

    let directed = port.register(&Registration::new(MgmtClass::SUBN_DIRECTED_ROUTE, &[]))?;
    let info: PortInfo = by_route(&mut port, directed, &[])?;
    println!("LID {}, subnet manager at {}", info.lid, info.master_sm_lid);
    if info.master_sm_lid == Lid::default() {
        return Ok(());
    }
    let administration = MadPeer {
        lid: info.master_sm_lid,
        qpn: Qpn::GSI,
        sl: info.master_sm_sl,
        ..MadPeer::default()
    };
    let record = record(&mut port, &administration, info.lid)?;
    println!("record: {} {}", record.node_info.node_guid, record.node_description.text());
    Ok(())
}

/// Sends a request. Returns the answer, padded with zeros to the length of a MAD, or `None` if none
/// arrived.
fn exchange(
    port: &mut UmadPort,
    agent: Agent,
    to: &MadPeer,
    request: &[u8; MAD_LEN],
) -> Result<Option<[u8; MAD_LEN]>, Box<dyn Error>> {
    // The kernel owns the upper half of the transaction ID.
    let id = |mad: &[u8]| MadHeader::read(mad).map(|(header, _)| header.transaction_id as u32);
    port.send(agent, to, request, Some(RETRY_POLICY))?;
    loop {
        let received = port.receive(ALL)?.ok_or("neither an answer came nor the request")?;
        // Other datagrams can arrive: a subnet manager queries ports that claim to be a manager.
        if received.agent != agent || id(received.datagram)? != id(request)? {
            continue;
        }
        let mut whole = [0; MAD_LEN];
        let bytes = received.datagram.len();
        whole.get_mut(..bytes).ok_or("an answer in segments")?.copy_from_slice(received.datagram);
        return Ok(received.is_answered.then_some(whole));
    }
}

fn by_route<A: Attribute>(
    port: &mut UmadPort,
    agent: Agent,
    hops: &[u8],
) -> Result<A, Box<dyn Error>> {
    let header = MadHeader::new(MgmtClass::SUBN_DIRECTED_ROUTE, Method::GET, 1, A::ID);
    let (dr_slid, dr_dlid) = (Lid::PERMISSIVE, Lid::PERMISSIVE);
    let mut request = DirectedSmp { header, dr_slid, dr_dlid, ..DirectedSmp::default() };
    request.set_hops(0, u8::try_from(hops.len())?);
    let path = request.initial_path.get_mut(1..=hops.len()).ok_or("at most 63 hops")?;
    path.copy_from_slice(hops);
    let to = MadPeer { lid: Lid::PERMISSIVE, ..MadPeer::default() };
    let answer = exchange(port, agent, &to, &request.emit())?.ok_or("nobody at this route")?;
    Ok(A::from_data(&DirectedSmp::parse(&answer).data))
}

/// The record of the node with this LID.
fn record(port: &mut UmadPort, to: &MadPeer, lid: Lid) -> Result<NodeRecord, Box<dyn Error>> {
    let agent = port.register(&Registration::new(MgmtClass::SUBN_ADM, &[]))?;
    let question = NodeRecord { lid, ..NodeRecord::default() };
    let request = SaMad::new(Method::GET, 2, NodeRecordMask::LID, question);
    let answer = exchange(port, agent, to, &request.emit())?.ok_or("no subnet administration")?;
    let answer = SaMad::parse(&answer);
    match answer.header.status {
        MadStatus::OK => Ok(answer.record::<NodeRecord>()?.1),
        status => Err(format!("subnet administration answers {status}").into()),
    }
}
