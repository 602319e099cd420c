"""The paper's experiments as data, and what runs, resumes and reports them."""
