// A selector shows the blocks with its chosen value, or all blocks. `Html::selector` writes selectors, `Html::begin_choice`
// writes blocks.
for (const select of document.querySelectorAll("select[data-choice]")) {
    const choice = select.dataset.choice;
    select.onchange = () => {
        for (const block of document.querySelectorAll(`[data-${choice}]`)) {
            block.hidden = select.value !== "" && block.dataset[choice] !== select.value;
        }
    };
    select.onchange();
}
