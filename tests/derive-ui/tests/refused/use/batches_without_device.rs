use meganeura::prelude::*;

fn _used(data: &Dataset) {
    for batch in data.batches(8) {
        drop(batch);
    }
}

fn main() {}
