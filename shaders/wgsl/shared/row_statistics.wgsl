// Statistics of rows, for softmax and cross-entropy: the peak, max x, and the sums of exp(x − peak) and of x − peak.
// A segment goes over a row, or over a part of it; all of its invocations call these functions together.
//
// The kernel declares
//     fn largest_at(row: u32, l: u32) -> f32                  element l of the row, or the largest of line l
//     fn sums_at(row: u32, l: u32, peak: f32) -> vec2<f32>    its terms of both sums; 0 for one that is not needed
//
// Defines: those of shared/segments

#include "shared/segment_folds"

/// The largest of the elements from `first` to `end`; NaN if any is.
fn row_peak(row: u32, first: u32, end: u32, lane: u32) -> f32 {
    var largest = largest_at(row, first);
    for (var l = first + member_of(lane); l < end; l += LANES) {
        largest = m_max(largest, largest_at(row, l));
    }
    return segment_max(lane, largest);
}

/// An invocation's share of the sums over the elements from `first` to `end`, in runs.
fn row_sums(row: u32, first: u32, end: u32, lane: u32, peak: f32) -> vec2<f32> {
    var sums = vec2<f32>();
    for (var begin = first; begin < end; begin += RUN) {
        var run = vec2<f32>();
        for (var l = begin + member_of(lane); l < min(begin + RUN, end); l += LANES) {
            run += sums_at(row, l, peak);
        }
        sums += run;
    }
    return sums;
}
