/// The linear index of a workgroup. The host counts workgroups linearly and folds what exceeds one dimension into x and
/// y. The fold rounds up, so the last indexes may lie past the end.
fn workgroup_index(workgroup: vec3<u32>, workgroups: vec3<u32>) -> u32 {
    return workgroup.x + workgroup.y * workgroups.x;
}
