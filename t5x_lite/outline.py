"""What a run is made of, without a run: `train --dry_run`."""

import jax

from t5x_lite import data
from t5x_lite import partitioning
from t5x_lite import record
from t5x_lite import show
from t5x_lite import train as training


def tell(run):
  """Prints the record and every parameter; allocates nothing."""
  print(record.to_json(record.record(run)))
  mesh = partitioning.make_mesh(run.mesh)
  program = training.Program.build(run, mesh)
  model = program.model
  rows = [('parameter', 'shape', 'axes', 'on the mesh', 'count')]
  leaves = jax.tree_util.tree_leaves_with_path(model.abstract)
  names = jax.tree.leaves(model.axes, is_leaf=lambda x: isinstance(x, tuple))
  for (path, leaf), axes in zip(leaves, names, strict=True):
    place = partitioning.partition_spec(leaf.shape, axes, mesh)
    rows.append(
      (
        partitioning.path_name(path),
        ' '.join(map(str, leaf.shape)),
        ' '.join(axes),
        ' '.join(str(entry or '-') for entry in place),
        f'{leaf.size:,}',
      )
    )
  show.table(rows)
  sizes = ', '.join(f'{k} {v}' for k, v in mesh.shape.items())
  print(f'{model.num_params:,} parameters; mesh: {sizes}')
  for line in partitioning.unsharded(model.abstract, model.axes, mesh):
    print(line)
  print(program.attention(data.widths(run)))
