//! Test: ranks train to the same bits while other programs connect to rank 0's port.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use crate::world::World;
use crate::world::engine::Engine;
use crate::world::watch::{Secret, Watch};
use crate::{DType, Device, Param, Result, Tape, Tensor};

/// An engine of ranks that are threads: sums in the order of ranks.
struct Threads {
    rank: usize,
    given: Arc<Mutex<Vec<Vec<u8>>>>,
    all: Arc<Barrier>,
}

impl Threads {
    /// What each rank gave, on every rank.
    fn swap(&self, own: &[u8]) -> Vec<Vec<u8>> {
        self.given.lock().unwrap()[self.rank] = own.to_vec();
        self.all.wait();
        let given = self.given.lock().unwrap().clone();
        self.all.wait();
        given
    }
}

impl Engine for Threads {
    fn name(&self) -> String {
        "threads".to_owned()
    }

    fn all_reduce(&mut self, dtype: DType, from: &[u8], to: &mut [u8]) -> Result<()> {
        let given = self.swap(from);
        macro_rules! add_up {
            ($T:ty) => {
                for (at, sum) in to.as_chunks_mut().0.iter_mut().enumerate() {
                    let number = |bytes: &Vec<u8>| <$T>::from_ne_bytes(bytes.as_chunks().0[at]);
                    *sum = given.iter().map(number).sum::<$T>().to_ne_bytes();
                }
            };
        }
        match dtype {
            DType::F32 => add_up!(f32),
            DType::F64 => add_up!(f64),
            DType::U32 => add_up!(u32),
            DType::I32 => add_up!(i32),
            DType::I64 => add_up!(i64),
        }
        Ok(())
    }

    fn reduce_scatter(&mut self, _: DType, _: &[u8], _: &mut [u8]) -> Result<()> {
        unreachable!("no state is sharded")
    }

    fn all_gather(&mut self, from: &[u8], to: &mut [u8]) -> Result<()> {
        to.copy_from_slice(&self.swap(from).concat());
        Ok(())
    }

    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<()> {
        bytes.copy_from_slice(&self.swap(bytes)[0]);
        Ok(())
    }

    fn end(&mut self, in_order: bool) {
        assert!(in_order, "nobody was lost");
    }
}

const RANKS: usize = 3;

/// Trains on a third of each batch, and returns the bits of the weights. Gradients are averaged between the plans, as
/// ranks that are threads share the pool in which plans run.
fn train(world: &World) -> Result<Vec<u32>> {
    let device = Device::cpu();
    let weight = |shape| Ok::<_, crate::Error>(Param::new(Tensor::randn(&device, shape, world.rank() as u64)?));
    let mut net: (Param, Param) = (weight([4, 8])?, weight([8, 2])?);
    world.share(&mut net)?;
    let bits = |weights: Vec<f32>| weights.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    for step in 0..20 {
        let x: Vec<_> = (0..20).map(|i| ((i * 7 + step * 3 + world.rank() * 11) % 13) as f32 / 6.5 - 1.0).collect();
        let tape = Tape::new(&device);
        let hidden = tape.input(&Tensor::from_slice(&device, [5, 4], &x)?).matmul(&tape.param(&net.0)).tanh();
        let loss = hidden.matmul(&tape.param(&net.1)).square().mean();
        let grads = tape.backward(&loss)?;
        let of = |weight: &Param| grads.get(weight).expect("it is trained");
        // Both are held when the first is read, so that one run computes both.
        let own = [of(&net.0), of(&net.1)];
        for (weight, own) in [&mut net.0, &mut net.1].into_iter().zip(own) {
            let own: Vec<_> = own.to_vec()?.into_iter().map(f64::from).collect();
            let sums = world.sum(&own)?;
            let stepped = weight.value().to_vec()?.into_iter().zip(sums);
            let stepped: Vec<_> = stepped.map(|(w, sum)| w - 0.1 * (sum / RANKS as f64) as f32).collect();
            weight.set(Tensor::from_slice(&device, weight.shape(), &stepped)?)?;
        }
    }
    Ok([bits(net.0.value().to_vec()?), bits(net.1.value().to_vec()?)].concat())
}

/// Trains with a hub on this machine. `connect` comes before the ranks, and what it returns stays until they are done.
fn trained<T>(connect: impl FnOnce(&str) -> T) -> Vec<Vec<u32>> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let secret = Secret::random().unwrap();
    Watch::serve(listener, RANKS, String::new(), secret.clone()).unwrap();
    let _strangers = connect(&address);
    let (given, all) = (Arc::new(Mutex::new(vec![Vec::new(); RANKS])), Arc::new(Barrier::new(RANKS)));
    thread::scope(|scope| {
        let rank = |rank| {
            let (given, all, address, secret) = (Arc::clone(&given), Arc::clone(&all), &address, &secret);
            scope.spawn(move || {
                let watch = Watch::join(address, rank, RANKS, "here", secret).unwrap();
                let world = World::connected(rank, Arc::new(watch), Box::new(Threads { rank, given, all }));
                train(&world).unwrap()
            })
        };
        let ranks: Vec<_> = (0..RANKS).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn strangers_change_no_bit_of_a_training() {
    let alone = trained(|_| ());
    assert!(alone.iter().all(|weights| *weights == alone[0]), "ranks have equal models");
    let attacked = trained(|address| {
        let connect = |kind: usize| {
            let mut stream = TcpStream::connect(address).unwrap();
            // Nothing, a part of a greeting, a whole one with a wrong proof, another protocol, a message of a rank.
            let hello = [0_u64, 1, RANKS as u64, 0, 0, 0].map(u64::to_le_bytes);
            let bytes = [
                Vec::new(),
                vec![3; 50],
                [&[5; 64][..], hello.as_flattened()].concat(),
                b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
                hello.as_flattened().repeat(9),
            ];
            drop(stream.write_all(&bytes[kind % bytes.len()]));
            stream
        };
        (0..100).map(connect).collect::<Vec<_>>()
    });
    assert_eq!(alone, attacked);
}
