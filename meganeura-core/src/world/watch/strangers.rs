//! Tests: other programs connect to rank 0's port, say what they like, and change nothing.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::door::SPARE;
use super::message::Message;
use super::secret::{self, End, LEN, OPENING};
use super::{Header, Purpose, Secret, TIMES, Times, Watch, hub};
use crate::ErrorKind;

const COUNT: Header = [Purpose::Count as u64, 8, 16, 0];

/// Times in which a connection ends only because something else ends it.
const PATIENT: Times = Times { greeting: Duration::from_secs(3600), ..TIMES };

/// A hub on this machine, for a world of `size` ranks.
fn hub_of(size: usize, times: Times) -> (String, Secret) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let secret = Secret::random().unwrap();
    hub::serve(listener, size, String::new(), secret.clone(), times).unwrap();
    (address, secret)
}

/// A connection that has read the hub's opening.
fn connect(address: &str) -> (TcpStream, [u8; OPENING]) {
    let mut stream = TcpStream::connect(address).unwrap();
    // A hub that never ends the connection fails the test, instead of hanging it.
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut opening = [0; OPENING];
    stream.read_exact(&mut opening).unwrap();
    (stream, opening)
}

/// Waits until the hub ends a connection, which it does without another word.
fn expect_end(mut stream: TcpStream, what: &str) {
    let mut byte = [0];
    match stream.read(&mut byte) {
        Ok(0) => {}
        Ok(_) => panic!("{what} got an answer"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{what}"),
    }
}

fn hello(rank: u64, size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    Message::Hello { rank, size, about: format!("evil\n{}", env!("CARGO_PKG_VERSION")) }.write(&mut bytes).unwrap();
    bytes
}

/// What a stranger sends first; it knows everything but the secret.
fn first_words(opening: &[u8; OPENING], recorded: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let hub = secret::opened(opening).unwrap();
    let other = Secret::random().unwrap();
    let of = |nonce: &[u8; LEN], proof: &[u8], hello: &[u8]| [&nonce[..], proof, hello].concat();
    let hello = hello(1, 3);
    let own = [7; LEN];
    let wrong = other.proof(End::Rank, &hub, &own, &hello);
    let mut long = hello.clone();
    long[40..48].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    vec![
        ("silence", Vec::new()),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(20)),
        ("a hello without a greeting", hello.clone()),
        ("half a greeting", of(&own, wrong.as_bytes(), &hello[..20])),
        ("another secret", of(&own, wrong.as_bytes(), &hello)),
        ("a proof of zeros", of(&own, &[0; LEN], &hello)),
        ("the hub's own number", of(&hub, &hub, &hello)),
        ("a recorded greeting", recorded.to_vec()),
        ("a text without an end", of(&own, wrong.as_bytes(), &long)),
        ("noise", (0..4096_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()),
    ]
}

/// The bytes of a rank that greeted another hub with the right secret.
fn recorded(secret: &Secret) -> Vec<u8> {
    let (nonce, own, hello) = (secret::random().unwrap(), secret::random().unwrap(), hello(1, 3));
    [&own[..], secret.proof(End::Rank, &nonce, &own, &hello).as_bytes(), &hello].concat()
}

#[test]
fn strangers_neither_join_nor_delay_nor_end_a_world() {
    let (address, secret) = hub_of(3, PATIENT);
    let recorded = recorded(&secret);
    let number = first_words(&secret::opening(&[0; LEN]), &recorded).len();
    // Each kind three times, before any rank.
    let strangers: Vec<_> = (0..3 * number)
        .map(|kind| {
            let (mut stream, opening) = connect(&address);
            let (what, bytes) = first_words(&opening, &recorded).swap_remove(kind % number);
            // The hub may have closed it in the middle.
            drop(stream.write_all(&bytes));
            (what, stream)
        })
        .collect();
    let left: Vec<_> = thread::scope(|scope| {
        let (address, secret, strangers) = (&address, &secret, &strangers);
        let rank = |rank| {
            scope.spawn(move || {
                let watch = Watch::join(address, rank, 3, "a host", secret).unwrap();
                for step in 0..100 {
                    // A connection that was accepted in time becomes no rank, and ends nobody.
                    if rank == 0 && step == 50 {
                        for (_, stream) in strangers {
                            drop((&*stream).write_all(&hello(1, 3)));
                            drop(Message::Leaving.write(&mut &*stream));
                        }
                    }
                    watch.expect(watch.come(COUNT).unwrap()).unwrap();
                }
                assert!(watch.fault().is_none());
                watch.leave()
            })
        };
        let ranks: Vec<_> = (0..3).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert_eq!(left, [true; 3]);
    // The connections ended with the greeting, though they had an hour.
    strangers.into_iter().for_each(|(what, stream)| expect_end(stream, what));
    assert!(TcpStream::connect(&address).is_err(), "a complete world does not listen");
}

#[test]
fn the_oldest_of_too_many_connections_ends() {
    let (address, secret) = hub_of(1, PATIENT);
    let mut strangers: Vec<_> = (0..SPARE + 9).map(|_| connect(&address).0).collect();
    let staying = strangers.split_off(8);
    for stranger in strangers {
        expect_end(stranger, "one of the oldest");
    }
    for mut stranger in staying {
        stranger.set_nonblocking(true).unwrap();
        assert_eq!(stranger.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
    assert!(Watch::join(&address, 0, 1, "here", &secret).unwrap().leave());
}

#[test]
fn a_rank_that_is_closed_among_many_comes_again() {
    let (address, secret) = hub_of(2, PATIENT);
    let left: Vec<_> = thread::scope(|scope| {
        let (address, secret) = (&address, &secret);
        let flood = scope.spawn(move || {
            // A bounded number of connections, three times as many as the hub holds.
            let held: Vec<_> = (0..3 * SPARE).map_while(|_| TcpStream::connect(address).ok()).collect();
            held.len()
        });
        let rank = |rank| scope.spawn(move || Watch::join(address, rank, 2, "here", secret).unwrap().leave());
        let ranks: Vec<_> = (0..2).map(rank).collect();
        assert!(flood.join().unwrap() > 0);
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert_eq!(left, [true; 2]);
}

#[test]
fn connections_end_that_prove_nothing_in_time() {
    let (address, secret) = hub_of(1, Times { greeting: Duration::from_millis(100), ..TIMES });
    let (silent, _) = connect(&address);
    let (mut slow, _) = connect(&address);
    // Each byte comes in time; all of them together do not.
    while slow.write_all(&[7]).is_ok() {
        thread::sleep(Duration::from_millis(10));
    }
    expect_end(silent, "silence");
    assert!(Watch::join(&address, 0, 1, "here", &secret).unwrap().leave());
}

#[test]
fn a_rank_obeys_no_hub_without_the_secret() {
    let soon = Times { joining: Duration::ZERO, ..TIMES };
    let joined = |address: &str, secret: &Secret| {
        let error = Watch::join_within(soon, address, 1, 2, "here", secret).err().expect("no such world");
        assert_eq!(error.kind(), ErrorKind::PeerLost);
        format!("{error:#}: {:?}", std::error::Error::source(&error).map(ToString::to_string))
    };
    let secret = Secret::random().unwrap();
    let (address, _) = hub_of(2, TIMES);
    let error = joined(&address, &secret);
    assert!(error.contains("rank 1 on here does not reach rank 0") && error.contains("the same secret"), "{error}");
    // A hub that sends the rank's proof back, and a program that is none.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let fake = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&secret::opening(&[1; LEN])).unwrap();
        let mut said = [0; 2 * LEN];
        stream.read_exact(&mut said).unwrap();
        stream.write_all(&said[LEN..]).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        other.write_all(&[b'x'; OPENING]).unwrap();
    });
    let error = joined(&address, &secret);
    assert!(error.contains("does not know the ranks' secret"), "{error}");
    let error = joined(&address, &secret);
    assert!(error.contains("another program than rank 0"), "{error}");
    fake.join().unwrap();
}

#[test]
fn an_incomplete_world_reports_its_strangers() {
    let (address, secret) = hub_of(2, Times { joining: Duration::from_millis(500), ..TIMES });
    let (mut stranger, _) = connect(&address);
    stranger.write_all(&[0; 2 * LEN + 48]).unwrap();
    expect_end(stranger, "zeros");
    let error = Watch::join(&address, 0, 2, "here", &secret).err().expect("rank 1 is missing").to_string();
    let expected = "of 2 ranks, [1] did not join within 0 s; 1 connections did not prove that they know";
    assert!(error.contains(expected), "{error}");
}
