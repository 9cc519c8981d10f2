#!/usr/bin/env python3
# Usage: scripts/linux-peer/minipeer.py [listen:]PATH [IPV4]
"""The least an InfiniBand endpoint has to do to speak IPoIB with Linux.

A worked example, in five parts: packets, subnet management (SMA), general services (SA join, CM),
IPoIB (ARP, ping), RC receiver.  It expects a subnet manager on the other end of the wire.
In connected mode it receives over RC and answers over UD, as every IPoIB node may."""

import os
import socket
import struct
import sys
import time
import zlib

GUID, PORT_GUID, UD_QPN, RC_QPN = 0x02000000000AA000, 0x02000000000AA001, 0x123, 0x222
QP1_QKEY, PERMISSIVE_LID, SEND_FIRST, SEND_LAST, SEND_ONLY, ACK, UD_SEND_ONLY = (
    0x80010000,
    0xFFFF,
    0,
    2,
    4,
    0x11,
    0x64,
)
BROADCAST_MGID = bytes.fromhex(
    'ff12401bffff000000000000ffffffff'
)  # IPv4, link-local scope, P_Key ffff

# ---------------------------------------------------------------- packets

VCRC_TABLE = []
for i in range(256):
    for _ in range(8):
        i = i >> 1 ^ 0xD008 if i & 1 else i >> 1  # x^16 + x^12 + x^3 + x + 1, reflected
    VCRC_TABLE.append(i)


def vcrc(data):
    """Over everything before it."""
    crc = 0xFFFF
    for byte in data:
        crc = crc >> 8 ^ VCRC_TABLE[(crc ^ byte) & 255]
    return (crc ^ 0xFFFF).to_bytes(2, 'little')


def icrc(data):
    """Over LRH to padding, with the fields that may change on the way as ones."""
    m = bytearray(data)
    if m[1] & 3 == 3:  # with GRH
        m[0:8] = b'\xff' * 8  # LRH
        m[8] |= 0x0F  # traffic class, flow label
        m[9:12] = b'\xff' * 3
        m[15] = m[52] = 0xFF  # hop limit, BTH resv8a
    else:
        m[0] |= 0xF0  # VL
        m[12] = 0xFF
    return zlib.crc32(m).to_bytes(4, 'little')


def crcs_ok(packet):
    return (
        len(packet) >= 26
        and vcrc(packet[:-2]) == packet[-2:]
        and icrc(packet[:-6]) == packet[-6:-2]
    )


def checksum(data):
    x = sum(struct.unpack(f'>{(len(data) + 1) // 2}H', data + bytes(len(data) & 1)))
    x = (x & 0xFFFF) + (x >> 16)
    return (~(x + (x >> 16)) & 0xFFFF).to_bytes(2, 'big')


class MiniPeer:
    def __init__(self, sock, ip='192.168.7.9', log=print):
        self.sock, self.ip, self.log = sock, socket.inet_aton(ip), log
        self.lid = self.sm_lid = self.psn = self.last_join = 0
        self.state, self.mtu, self.prefix, self.mkey = (
            2,
            4,
            0xFE80000000000000,
            0,
        )  # INIT, 2048 bytes
        self.pkeys = b'\xff\xff' + bytes(62)
        self.qkey = self.mlid = self.rc = None
        self.counts = dict(packets=0, bad_crc=0, smp=0, arp=0, echo_ud=0, echo_rc=0)

    def send(self, dlid, qpn, opcode, body, psn=None, vl15=False):
        if psn is None:
            psn, self.psn = self.psn, self.psn + 1 & 0xFFFFFF
        pad = -len(body) & 3
        slid = PERMISSIVE_LID if dlid == PERMISSIVE_LID else self.lid
        packet = struct.pack(
            '>BBHHH', 0xF0 if vl15 else 0, 2, dlid, (8 + 12 + len(body) + pad + 4) // 4, slid
        )
        packet += (
            struct.pack('>BBHII', opcode, 0x40 | pad << 4, 0xFFFF, qpn, psn) + body + bytes(pad)
        )
        packet += icrc(packet)
        packet += vcrc(packet)
        frame = b'\xff' * 6 + b'\x02\0\0\0\0\x99' + b'\x88\xb5' + packet
        self.sock.sendall(struct.pack('>I', len(frame)) + frame)

    def ud(self, dlid, qpn, qkey, source_qpn, payload, **kw):
        self.send(dlid, qpn, UD_SEND_ONLY, struct.pack('>II', qkey, source_qpn) + payload, **kw)

    def receive(self, packet):
        self.counts['packets'] += 1
        if not crcs_ok(packet):
            self.counts['bad_crc'] += 1
            return
        dlid, slid = struct.unpack('>2xHxxH', packet[:8])
        bth = 48 if packet[1] & 3 == 3 else 8
        opcode, flags, _, qpn, psn = struct.unpack('>BBHII', packet[bth : bth + 12])
        qpn &= 0xFFFFFF
        body = packet[bth + 12 : len(packet) - 6 - (flags >> 4 & 3)]
        if opcode == UD_SEND_ONLY and len(body) >= 8:
            qkey, payload = int.from_bytes(body[:4], 'big'), body[8:]
            if qpn == 0:
                self.smp(payload, slid)
            elif qpn == 1 and qkey == QP1_QKEY:
                self.gsi(payload, slid)
            elif qkey == self.qkey and (qpn == UD_QPN or qpn == 0xFFFFFF and dlid == self.mlid):
                self.ipoib(payload, slid, int.from_bytes(body[5:8], 'big'), 'ud')
        elif opcode <= SEND_ONLY and qpn == RC_QPN and self.rc:
            self.rc_receive(opcode, body, psn & 0xFFFFFF, psn >> 31)

    # ------------------------------------------------------------ subnet management (SMA)

    def smp(self, mad, slid):
        self.counts['smp'] += 1
        method, (attribute,), data = mad[3], struct.unpack('>H', mad[16:18]), mad[64:128]
        if method not in (1, 2):
            return  # not Get, not Set
        status = 0
        if attribute == 0x10:  # NodeDescription
            answer = b'minipeer'
        elif attribute == 0x11:  # NodeInfo: a CA with one port
            answer = struct.pack('>4BQQQHHIB3x', 1, 1, 1, 1, GUID, GUID, PORT_GUID, 16, 1, 1, 1)
        elif attribute == 0x14:  # GUIDInfo
            answer = struct.pack('>Q', PORT_GUID)
        elif attribute == 0x15:  # PortInfo
            if method == 2:
                self.set_portinfo(data)
            answer = self.portinfo()
        elif attribute == 0x16:  # P_KeyTable
            if method == 2:
                self.pkeys = data
            answer = self.pkeys
        else:  # with one VL, OpenSM asks for no more
            status, answer = 0x0C, b''
        reply = bytearray(mad)
        reply[3], reply[64:128] = 0x81, answer.ljust(64, b'\0')  # GetResp
        if mad[1] == 0x81:  # directed route: turn it round; the hop
            status |= 0x8000  # pointer stays at the hop count
            reply[192 + mad[7]] = 1  # return path: came in by port 1
            slid = PERMISSIVE_LID
        reply[4:6] = struct.pack('>H', status)
        self.ud(slid, 0, 0, 0, bytes(reply), vl15=True)

    def set_portinfo(self, data):
        self.mkey, self.prefix, lid, sm_lid = struct.unpack('>QQHH', data[:20])
        self.lid, self.sm_lid = lid or self.lid, sm_lid or self.sm_lid  # zero: no change
        self.mtu = data[36] >> 4 or self.mtu
        new = data[32] & 15
        if new in (3, 4) and new != self.state:  # ARMED, ACTIVE
            self.log(f'port state {self.state} -> {new}, LID {self.lid}, SM LID {self.sm_lid}')
            self.state = new

    def portinfo(self):
        b = bytearray(64)
        struct.pack_into(
            '>QQHHI', b, 0, self.mkey, self.prefix, self.lid, self.sm_lid, 1 << 11 | 1 << 25
        )
        b[28] = 1  # local port
        b[29:32] = 3, 3, 2  # width: enabled, supported, active 4X
        b[32:34] = 7 << 4 | self.state, 5 << 4 | 2  # speeds, state; LinkUp, polling
        b[35:38] = 4 << 4 | 7, self.mtu << 4, 1 << 4  # QDR; neighbor MTU; VLCap: VL0
        b[41], b[43] = 4, 1 << 4  # MTUCap 2048; operational VLs
        b[50:53] = 1, 18, 16  # GUIDCap, subnet timeout, response time
        return bytes(b)

    # ------------------------------------------------------------ general services

    def gid(self):
        return struct.pack('>QQ', self.prefix, PORT_GUID)

    def join(self):
        """SubnAdmSet(MCMemberRecord) with MGID, PortGID, P_Key, JoinState: join the broadcasts."""
        self.last_join = time.monotonic()
        mad = struct.pack('>BBBBHHQHHI', 1, 3, 2, 2, 0, 0, 0x1234, 0x38, 0, 0) + bytes(12)
        mad += struct.pack('>QHHQ', 0, 0, 0, 1 | 1 << 1 | 1 << 7 | 1 << 16)
        mad += (
            BROADCAST_MGID + self.gid() + struct.pack('>IHBBHBBIB', 0, 0, 0, 0, 0xFFFF, 0, 0, 0, 1)
        )
        self.ud(self.sm_lid, 1, QP1_QKEY, 1, mad.ljust(256, b'\0'))

    def gsi(self, mad, slid):
        (attribute,) = struct.unpack('>H', mad[16:18])
        if mad[1] == 3 and mad[3] == 0x81 and attribute == 0x38 and mad[4:6] == b'\0\0':
            self.qkey, self.mlid = struct.unpack('>IH', mad[88:94])
            self.log(f'joined the broadcast group: Q_Key {self.qkey:08x}, MLID {self.mlid:04x}')
        if mad[1] != 7:
            return
        body = mad[24:]  # CM
        if attribute == 0x10:  # REQ: ready to receive, then REP
            qpn, psn = body[32:35], body[44:47]
            self.rc = dict(
                lid=slid,
                qpn=int.from_bytes(qpn, 'big'),
                psn=int.from_bytes(psn, 'big'),
                msn=0,
                data=b'',
                ud_qpn=int.from_bytes(body[141:144], 'big'),
            )  # IPoIB's private data
            rep = (
                b'\0\0\x77\x01'
                + body[:4]
                + struct.pack('>IIIIBBBBQ', 0, RC_QPN << 8, 0, 0, 0, 0, 0, 0, GUID)
            )
            self.cm(
                mad, slid, 0x13, rep + struct.pack('>II', UD_QPN, 65520 + 4)
            )  # private data: UD QPN, MTU
        elif attribute == 0x15:  # DREQ: DREP
            self.rc = None
            self.cm(mad, slid, 0x16, body[4:8] + body[:4])
        self.log(
            {0x10: 'CM REQ', 0x14: 'CM RTU', 0x15: 'CM DREQ'}.get(attribute, f'CM {attribute:02x}')
        )

    def cm(self, mad, dlid, attribute, body):
        header = mad[:16] + struct.pack('>H', attribute) + mad[18:24]
        self.ud(dlid, 1, QP1_QKEY, 1, (header + body).ljust(256, b'\0'))

    # ------------------------------------------------------------ IPoIB

    def ipoib(self, payload, lid, qpn, via):
        """Answers go to the sender's LID and UD QPN: one subnet with one path needs no query."""
        ethertype, data = int.from_bytes(payload[:2], 'big'), payload[4:]
        if ethertype == 0x806 and data[6:8] == b'\0\1' and data[52:56] == self.ip:  # ARP request
            hardware, ip = data[8:28], data[28:32]
            self.counts['arp'] += 1
            flags = 0x80000000  # "RC supported"
            me = struct.pack('>I', flags | UD_QPN) + self.gid()
            answer = payload[:4] + data[:6] + b'\0\2' + me + self.ip + hardware + ip
            self.ud(lid, qpn, self.qkey, UD_QPN, answer)
        elif (
            ethertype == 0x800 and data[9] == 1 and data[16:20] == self.ip and data[20] == 8
        ):  # echo request
            self.counts['echo_' + via] += 1
            ip, icmp = bytearray(data[:20]), bytearray(data[20 : int.from_bytes(data[2:4], 'big')])
            ip[12:16], ip[16:20], ip[10:12], icmp[0], icmp[2:4] = (
                ip[16:20],
                ip[12:16],
                b'\0\0',
                0,
                b'\0\0',
            )
            ip[10:12], icmp[2:4] = checksum(bytes(ip)), checksum(bytes(icmp))
            if len(ip) + len(icmp) <= 2044:
                self.ud(lid, qpn, self.qkey, UD_QPN, payload[:4] + ip + icmp)

    # ------------------------------------------------------------ RC receiver

    def rc_receive(self, opcode, payload, psn, ack_requested):
        rc = self.rc
        if psn == rc['psn']:  # else duplicate: acknowledge again
            rc['data'] = payload if opcode in (SEND_FIRST, SEND_ONLY) else rc['data'] + payload
            rc['psn'] = psn + 1 & 0xFFFFFF
            if opcode in (SEND_LAST, SEND_ONLY):
                rc['msn'] = rc['msn'] + 1 & 0xFFFFFF
                self.ipoib(rc['data'], rc['lid'], rc['ud_qpn'], 'rc')
        if ack_requested:  # 31: no credits; the wire loses nothing,
            aeth = struct.pack('>I', 31 << 24 | rc['msn'])  # so a gap (NAK) is not looked for
            self.send(rc['lid'], rc['qpn'], ACK, aeth, psn=rc['psn'] - 1 & 0xFFFFFF)

    # ------------------------------------------------------------ wire

    def serve(self):
        """Until the other end goes away."""
        self.sock.settimeout(0.2)
        buf = b''
        while True:
            if self.state == 4 and self.qkey is None and time.monotonic() - self.last_join > 1:
                self.join()
            try:
                data = self.sock.recv(65536)
            except TimeoutError:
                continue
            if not data:
                return
            buf += data
            while len(buf) >= 4 and len(buf) >= 4 + (n := int.from_bytes(buf[:4], 'big')):
                frame, buf = buf[4 : 4 + n], buf[4 + n :]
                if frame[12:14] == b'\x88\xb5':
                    packet = frame[14:]
                    self.receive(packet[: (int.from_bytes(packet[4:6], 'big') & 0x7FF) * 4 + 2])


def main():
    path, sock = sys.argv[1], socket.socket(socket.AF_UNIX)
    if path.startswith('listen:'):
        if os.path.exists(path[7:]):
            os.unlink(path[7:])
        sock.bind(path[7:])
        sock.listen(1)
        sock = sock.accept()[0]
    else:
        sock.connect(path)
    peer = MiniPeer(sock, *sys.argv[2:3])
    try:
        peer.serve()
    except (KeyboardInterrupt, ConnectionError):
        pass
    print(peer.counts)


if __name__ == '__main__':
    main()
