/** True while the focus is where nobody has put it: nowhere, or on the view as a whole. A view may take it then. */
export function isFocusFree(): boolean {
  const { activeElement } = document;
  return activeElement === null || activeElement === document.body || activeElement.id === "main";
}
