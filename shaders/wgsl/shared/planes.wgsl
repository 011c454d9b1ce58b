// The planes of volumes. A volume has IN_D planes. Plane z of the result is the sum, over the KD planes of the kernel,
// of the convolutions of the planes that they meet: a stride SD, padding PD before the first plane, which may be
// negative modulo 2³², and a dilation DD. Planes of the input are UD apart, with zeros in between. An image is a volume
// of one plane, and so is a sequence, whose plane has one row.
//
// Defines: VOLUMES  defined where there are more planes, of an input or of the kernel; with IN_D, OUT_D, KD, SD, PD,
// DD, UD

#if VOLUMES
const IN_D: u32 = ${IN_D};
const OUT_D: u32 = ${OUT_D};
const KD: u32 = ${KD};
const SD: u32 = ${SD};
const PD: u32 = ${PD};
const DD: u32 = ${DD};
const UD: u32 = ${UD};
#else
const IN_D: u32 = 1u;
const OUT_D: u32 = 1u;
const KD: u32 = 1u;
const DD: u32 = 1u;
const UD: u32 = 1u;
#endif

/// The plane that the kernel's plane `tap` reads for plane z of the result; IN_D where it reads zeros.
fn plane_read(z: u32, tap: u32) -> u32 {
#if VOLUMES
    let at = z * SD + tap * DD - PD;
    return select(IN_D, at / UD, at < (IN_D - 1u) * UD + 1u && at % UD == 0u);
#else
    return 0u;
#endif
}
