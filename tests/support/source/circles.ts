/** Modules that lead to a circle: a module is outside when all that it names are known to be. */
export function inCircles(named: ReadonlyMap<string, Iterable<string>>): string[] {
  const outside = new Set<string>();
  for (let before = -1; before < outside.size; ) {
    before = outside.size;
    for (const [name, targets] of named) if ([...targets].every((target) => outside.has(target))) outside.add(name);
  }
  return [...named.keys()].filter((name) => !outside.has(name));
}
