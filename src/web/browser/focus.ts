/** True while the focus is nowhere, or on the view as a whole: a view may take it then. */
export function isFocusFree(): boolean {
  const { activeElement } = document;
  return activeElement === null || activeElement === document.body || activeElement.id === "main";
}
