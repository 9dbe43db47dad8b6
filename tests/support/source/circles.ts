/** Modules that lead to a circle. A module does not when all modules that it names do not. */
export function inCircles(named: ReadonlyMap<string, Iterable<string>>): string[] {
  const outside = new Set<string>();
  for (let before = -1; before < outside.size; ) {
    before = outside.size;
    for (const [name, targets] of named) if ([...targets].every((target) => outside.has(target))) outside.add(name);
  }
  return [...named.keys()].filter((name) => !outside.has(name));
}
