"""linux_peer.py selftest: two guests on one cable, OpenSM in one of them, tshark as the judge."""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import minipeer
from linux_peer import Cable, Guest, GuestError, Pcap

A, B, MINI = '10.0.0.1', '10.0.0.2', '10.0.0.9'
BAD_LOG = 'WARNING: |BUG: |Oops|Call Trace|general protection|hung_task|CQ overflow'


class Table:
    def __init__(self):
        self.failed = 0

    def step(self, name, function):
        start = time.monotonic()
        try:
            verdict, note = 'PASS', function() or ''
        except (GuestError, AssertionError, OSError, subprocess.SubprocessError) as e:
            verdict, note = 'FAIL', str(e)
            self.failed += 1
        note = note if verdict == 'FAIL' else note.splitlines()[0] if note else ''
        print(f'{verdict}  {name:<44} {time.monotonic() - start:5.1f} s  {note}', flush=True)


def ping(guest, target, count=4, options=''):
    output = guest.check(f'ping -c {count} -i 0.2 -W 8 {options} {target}')
    assert ' 0% packet loss' in output, output
    return output.strip().splitlines()[-1]


def patient_ping(guest, target):
    """Every echo is answered in the end, which ping does not wait for but the kernel counts."""
    before = echo_replies(guest)
    output = guest.check(f'busybox ping -q -c 8 -W 10 -s 20000 {target} || true')
    for _ in range(20):
        if echo_replies(guest) - before >= 8:
            break
        time.sleep(0.5)
    assert echo_replies(guest) - before == 8, output
    return output.strip().splitlines()[-1]


def echo_replies(guest):
    names, values = (
        line.split() for line in guest.check('grep ^Icmp: /proc/net/snmp').strip().splitlines()
    )
    return int(values[names.index('InEchoReps')])


def iperf(a, b):
    b.check('iperf3 -s -1 -D >/dev/null 2>&1; sleep 0.5')
    end = json.loads(a.check(f'iperf3 -J -n 8M -c {B}', 120))['end']
    rate, again = end['sum_received']['bits_per_second'] / 1e6, end['sum_sent']['retransmits']
    return f'{rate:.0f} Mbit/s, {again} retransmits'


def bring_up(a, b, mode, params=None):
    if params is not None:
        for g in (b, a):  # the one with the SM last
            g.unload_hca()
        for g in (a, b):
            g.load_hca(params)
    a.start_sm()
    b.check('wait_active')
    a.ipoib(f'{A}/24', mode)
    b.ipoib(f'{B}/24', mode)
    # the group's members hear of each other only when both have joined
    a.check(f'wait_for 10 ping -q -c 1 -W 1 {B}')
    return a.check('show').splitlines()[0]


def set_mode(guests, mode):
    for g in guests:
        mtu = 65520 if mode == 'connected' else 2044
        g.check(f'echo {mode} > /sys/class/net/ib0/mode; ip link set ib0 mtu {mtu}')


def ping6(a, b):
    address = b.check(
        "wait_for 10 sh -c '! ip -6 addr show ib0 tentative | grep -q inet6';"
        "ip -6 -o addr show ib0 scope link | awk '{print $4}'"
    ).split('/')[0]
    return ping(a, f'{address}%ib0', options='-6')


def flap(a):
    a.link(False)
    a.check("wait_for 10 sh -c 'grep -q DOWN /sys/class/infiniband/vhca0/ports/1/state'")
    a.link(True)
    start = time.monotonic()
    a.check(f'wait_active; wait_carrier; wait_for 10 ping -q -c 1 -W 1 {B}')
    return f'again after {time.monotonic() - start:.1f} s'


def quiet(guests):
    for g in guests:
        rc, output = g.run(f"dmesg | grep -E '{BAD_LOG}'")
        assert rc == 1, output
        errors = g.check('counter port_rcv_errors; counter port_xmit_discards').split()
        assert errors == ['0', '0'], f'port_rcv_errors, port_xmit_discards: {errors}'


def with_minipeer(guest, cable, path):
    """Move the guest's cable from the other guest to a process of this machine."""
    guest.link(False)
    cable.stop()
    if os.path.exists(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1)
    dialler = Cable(guest.socket, path)
    sock = listener.accept()[0]
    peer = minipeer.MiniPeer(sock, MINI, log=lambda *_: None)
    server = threading.Thread(target=peer.serve, daemon=True)
    server.start()
    try:
        guest.check('echo datagram > /sys/class/net/ib0/mode; ip neigh flush dev ib0')
        guest.link(True)
        guest.check(f'wait_active; wait_carrier; wait_for 10 ping -q -c 1 -W 1 {MINI}')
        ping(guest, MINI, options='-s 1900')
        set_mode([guest], 'connected')
        ping(guest, MINI, options='-s 1900')
        assert peer.counts['echo_rc'] > 0 and peer.counts['bad_crc'] == 0, peer.counts
    finally:
        dialler.stop()
        server.join(5)
        listener.close()
    return str(peer.counts)


def crcs(path, limit=3000):
    """Judge CRCs by the Python implementation: tshark does not look at them."""
    data, n, at = open(path, 'rb').read(), 0, 24
    while at < len(data) and n < limit:
        length = struct.unpack_from('<I', data, at + 8)[0]
        packet = data[at + 32 : at + 16 + length]
        assert minipeer.crcs_ok(packet), f'packet {n + 1}: bad CRC: {packet.hex()}'
        at, n = at + 16 + length, n + 1
    assert n > 100, f'{n} packets'
    return f'{n} packets'


def tshark(path, table):
    fields = (
        '_ws.col.Info',
        'arp.hw.type',
        'arp.src.hw',
        '_ws.malformed',
        'infiniband.lrh.vl',
        'icmpv6.type',
        'infiniband.aeth.syndrome.opcode',
        'infiniband.aeth.syndrome.credit_count',
    )
    rows = []

    def decode():
        run = subprocess.run(
            [
                'tshark',
                '-r',
                path,
                '--disable-protocol',
                'rpcordma',
                '-T',
                'fields',
                '-o',
                'ip.check_checksum:TRUE',
                *(x for f in fields for x in ('-e', f)),
            ],
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr
        rows.extend(
            dict(zip(fields, line.split('\t'))) for line in run.stdout.rstrip('\n').split('\n')
        )
        foreign = [r for r in rows if not r['infiniband.lrh.vl']]
        assert rows and not foreign, f'{len(rows)} packets, not InfiniBand: {foreign[:3]}'
        return f'{len(rows)} packets'

    def some(field, match):
        n = sum(bool(match(r[field])) for r in rows)
        assert n, f'none of {len(rows)} packets'
        return f'{n} packets'

    def none_malformed():
        bad = [i + 1 for i, r in enumerate(rows) if r['_ws.malformed']]
        assert not bad, f'{len(bad)} packets: {bad[:10]}'

    table.step('tshark: every packet is InfiniBand', decode)
    for name, field, match in (
        ('ARP with hardware type 32', 'arp.hw.type', lambda x: x == '32'),
        ('CM ConnectRequest', '_ws.col.Info', lambda x: 'ConnectRequest' in x),
        ('CM ConnectReply', '_ws.col.Info', lambda x: 'ConnectReply' in x),
        ('CM ReadyToUse', '_ws.col.Info', lambda x: 'ReadyToUse' in x),
        ('IPv6 neighbor solicitation', 'icmpv6.type', lambda x: x == '135'),
        (
            'RC ACK without credits',
            'infiniband.aeth.syndrome.credit_count',
            lambda x: x and int(x, 0) == 31,
        ),
        (
            'RC ACK with credits',
            'infiniband.aeth.syndrome.credit_count',
            lambda x: x and int(x, 0) < 31,
        ),
        ('RC RNR NAK', 'infiniband.aeth.syndrome.opcode', lambda x: x and int(x, 0) == 1),
        ('RC NAK', 'infiniband.aeth.syndrome.opcode', lambda x: x and int(x, 0) == 3),
    ):
        table.step(f'tshark: {name}', lambda: some(field, match))
    table.step('tshark: nothing malformed', none_malformed)


def main(keep=None):
    table, start = Table(), time.monotonic()
    work = keep or tempfile.mkdtemp(prefix='linux-peer-')
    os.makedirs(work, exist_ok=True)
    path = os.path.join(work, 'wire.pcap')
    guests, pcap, cable = [], Pcap(path), None
    try:
        table.step('two guests', lambda: guests.extend(Guest(number=n) for n in (1, 2)))
        if table.failed:
            return 1
        a, b = guests
        cable = Cable(a.socket, b.socket, pcap)
        table.step('OpenSM brings both ports up', lambda: bring_up(a, b, 'datagram'))
        for mode in ('datagram', 'connected'):
            if mode == 'connected':
                set_mode(guests, mode)
            table.step(f'{mode}: ping', lambda: ping(a, B))
            table.step(f'{mode}: ping, other direction', lambda: ping(b, A))
            size = 8000 if mode == 'datagram' else 65000
            table.step(f'{mode}: ping with {size} bytes', lambda: ping(a, B, options=f'-s {size}'))
            table.step(f'{mode}: IPv6 ping', lambda: ping6(a, b))
            table.step(f'{mode}: iperf3', lambda: iperf(a, b))
        table.step('no kernel warning, no bad or lost packet', lambda: quiet(guests))
        table.step('cable pulled and plugged', lambda: flap(a))
        for name, params in (
            ('without SRQ, with credits', 'use_srq=0 credits=1'),
            ('every 23rd RC packet lost', 'drop_rc=23 force_retry=7'),
            ('every 5th RC message RNR', 'rnr_rc=5 force_retry=7'),
        ):
            table.step(f'reload: {name}', lambda: bring_up(a, b, 'connected', params))
            table.step('  connected: ping with 20000 bytes', lambda: patient_ping(a, B))
            if 'credits' in params:
                table.step('  connected: iperf3', lambda: iperf(a, b))
        pcap.close()
        table.step(
            'minipeer.py instead of the other guest',
            lambda: with_minipeer(a, cable, os.path.join(work, 'mini')),
        )
        table.step('no kernel warning', lambda: quiet(guests))
        table.step('CRCs', lambda: crcs(path))
        if shutil.which('tshark'):
            tshark(path, table)
        else:
            print('SKIP  tshark is not installed')
    finally:
        if cable:
            cable.stop()
        pcap.close()
        for g in guests:
            if keep:
                with open(os.path.join(work, f'guest{g.number}.log'), 'w') as f:
                    f.write(g.log())
            g.close()
        if not keep:
            shutil.rmtree(work, ignore_errors=True)
    verdict, seconds = 'FAIL' if table.failed else 'PASS', time.monotonic() - start
    print(f'{verdict}: {table.failed} failed, {seconds:.0f} s')
    return 1 if table.failed else 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:2]))
